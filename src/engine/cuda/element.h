// SPDX-License-Identifier: Apache-2.0
// The element types of Q, K, V and O that the kernels are written for.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

enum class Element : unsigned char { kFp16, kBf16 };

FA3_HD constexpr int bytes_of(Element) {
  return 2;  // both of them
}

}  // namespace fa3::cuda
