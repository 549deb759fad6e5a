// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator.
#pragma once

#include "elements.h"

namespace fa3::cuda {

template <Element E>
void unpack_pair(uint32_t pair, float& low, float& high) {
  low = emulator::from_bits<E>(uint16_t(pair));
  high = emulator::from_bits<E>(uint16_t(pair >> 16));
}

}  // namespace fa3::cuda
