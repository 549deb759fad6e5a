// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fa3 {

constexpr int64_t ceil_div(int64_t count, int64_t divisor) {
  return (count + divisor - 1) / divisor;
}

}  // namespace fa3
