// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"

namespace fa3::hopper::ptx {

using cuda::unpack_pair;

inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto of = [](uint32_t pair, int half) {
    return double{cuda::widened<cuda::Element::kFp16>(uint16_t(pair >> 16 * half))};
  };
  float sums[2];  // products and sums of fp16 in double, rounded to float, then once more
  for (int i = 0; i < 2; ++i) sums[i] = float(of(a, i) * of(b, i) + of(c, i));
  return cuda::pack_pair<cuda::Element::kFp16>(sums[0], sums[1]);
}

}  // namespace fa3::hopper::ptx
