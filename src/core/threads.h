// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fa3 {

// Cores that this process may use (its affinity mask), at least 1.
int available_threads();

}  // namespace fa3
