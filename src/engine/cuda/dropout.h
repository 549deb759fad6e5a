// SPDX-License-Identifier: Apache-2.0
// What a kernel with dropout is given. Next: dropout.cuh.
#pragma once

#include "core/dropout.h"

namespace fa3::cuda {

struct DropoutParams {
  Dropout dropout;
  float scale = 1.0f;  // 1 / (1 - p), of what is kept; where nothing is, 0 whatever the draws

  static DropoutParams of(const Dropout& dropout) { return {dropout, float(dropout.scale())}; }
};

}  // namespace fa3::cuda
