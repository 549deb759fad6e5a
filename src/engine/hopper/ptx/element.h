// SPDX-License-Identifier: Apache-2.0
// The element types of Q, K, V and O that the kernels are written for.
#pragma once

namespace fa3::hopper {

enum class Element : unsigned char { kFp16, kBf16 };

inline constexpr int kElementBytes = 2;  // both of them

}  // namespace fa3::hopper
