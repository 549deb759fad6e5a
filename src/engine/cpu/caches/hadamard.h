// SPDX-License-Identifier: Apache-2.0
//
// The Hadamard matrix and the random signs of the quantizer and its inverse, in the order of
// roundings of docs/numerics.md: for sources that are compiled without contraction.
#pragma once

#include <vector>

#include "core/quantization.h"

namespace fa3::cpu {

// 1 or -1 for each channel.
inline std::vector<float> random_signs(uint64_t seed, int64_t dim) {
  std::vector<float> signs;
  for (int64_t c = 0; c < dim; ++c) signs.push_back(is_negated(seed, c) ? -1.0f : 1.0f);
  return signs;
}

// row -> H row: butterflies of growing stride in each block, then block^-0.5.
inline void multiply_by_hadamard(int64_t dim, float* row) {
  const int64_t block = hadamard_block(dim);
  for (int64_t stride = 1; stride < block; stride *= 2) {
    for (int64_t first = 0; first < dim; first += 2 * stride) {
      for (int64_t c = first; c < first + stride; ++c) {
        const float a = row[c], b = row[c + stride];
        row[c] = a + b;
        row[c + stride] = a - b;
      }
    }
  }
  const float factor = hadamard_factor(block);
  for (int64_t c = 0; c < dim; ++c) row[c] *= factor;
}

inline void multiply_by_signs(const std::vector<float>& signs, float* row) {
  for (size_t c = 0; c < signs.size(); ++c) row[c] *= signs[c];
}

}  // namespace fa3::cpu
