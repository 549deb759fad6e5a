// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator.
#pragma once

#include "emulator.h"

namespace fa3::cuda {

inline unsigned char* dynamic_smem() {
  return emulator::shared_memory();
}

}  // namespace fa3::cuda
