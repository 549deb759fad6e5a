// SPDX-License-Identifier: Apache-2.0
// The element types of Q, K, V and O that the kernels are written for; O is never e4m3.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/macros.h"

namespace fa3::cuda {

enum class Element : unsigned char { kFp16, kBf16, kE4m3 };

FA3_HD constexpr int bytes_of(Element element) {
  return element == Element::kE4m3 ? 1 : 2;
}

// How one lies in memory.
template <Element E>
using Bits = std::conditional_t<bytes_of(E) == 1, uint8_t, uint16_t>;

}  // namespace fa3::cuda
