// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

#include "engine/cuda/element.h"

namespace fa3::cuda {

template <Element E>
void mma_m16n8k16(float*, const uint32_t (&)[4], const uint32_t (&)[2]) {}

}  // namespace fa3::cuda
