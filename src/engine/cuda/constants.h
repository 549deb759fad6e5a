// SPDX-License-Identifier: Apache-2.0
// Constants of softmax in log2 units.
#pragma once

#include <numbers>

namespace fa3::cuda {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;

}  // namespace fa3::cuda
