// SPDX-License-Identifier: Apache-2.0
// Which dimension of a wgmma operand is contiguous in shared memory: the one that the product sums
// over (K), or the other one (M of A, N of B).
#pragma once

namespace fa3::hopper {

enum class Major : unsigned char { kK, kMn };

}  // namespace fa3::hopper
