// SPDX-License-Identifier: Apache-2.0
// Numbers that are none.
#pragma once

#include <limits>

namespace fa3::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace fa3::test
