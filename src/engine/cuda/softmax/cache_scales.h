// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/quantization.h"

namespace fa3::cuda {

// Scales of a quantized cache, by sequence and key head.
struct CacheScales {
  Descales<const float> key;
  Descales<const float> value;
};

}  // namespace fa3::cuda
