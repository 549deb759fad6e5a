// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::cuda {

template <Element E>
void unpack_pair(uint32_t pair, float& low, float& high) {
  low = widened<E>(uint16_t(pair));
  high = widened<E>(uint16_t(pair >> 16));
}

}  // namespace fa3::cuda
