// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the model.
#pragma once

#include "cuda_words.h"

namespace fa3::cuda {

inline unsigned char* dynamic_smem() {
  return machine::shared_memory();
}

}  // namespace fa3::cuda
