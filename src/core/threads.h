// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fa3 {

// Threads for a call that names no number, at least 1: one for each core of this process's affinity
// mask, but no more than OMP_NUM_THREADS or the CPU quota of its cgroups, as they were at first
// use.
int available_threads();

}  // namespace fa3
