// SPDX-License-Identifier: Apache-2.0
//
// Wide numbers of e4m3 ones, of several tensors at once: see fa3_dequantize_together(). Next:
// problem.h.
#pragma once

#include <span>

#include "core/problem.h"

namespace fa3 {

struct DequantizeProblem {
  std::span<const QuantizeProblem> tensors;  // at least one; each one's x is written
  fa3_device_type device = FA3_CPU;          // of all
  int device_index = 0;
};

}  // namespace fa3
