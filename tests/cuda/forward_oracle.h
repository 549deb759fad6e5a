// SPDX-License-Identifier: Apache-2.0
// What a forward is held to, computed on the current GPU (support/oracle/forward_oracle.h).
#pragma once

#include "support/oracle/forward_oracle.h"

namespace fa3::test {

// Ends the process where the GPU fails.
Truth forward_truth_on_gpu(const Case& c, const Inputs& inputs);

}  // namespace fa3::test
