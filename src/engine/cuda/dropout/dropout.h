// SPDX-License-Identifier: Apache-2.0
// What a kernel with dropout is given. Next: dropout.cuh.
#pragma once

#include "core/dropout/dropout.h"

namespace fa3::cuda {

struct DropoutParams {
  Dropout dropout;
  float scale = 1.0f;         // 1 / (1 - p), of what is kept; any where nothing is
  float keeps = 1.0f;         // 1 - p; likewise
  uint32_t limits[2] = {};    // of the draws in both halves of a word (Dropout::limit)
  uint32_t kept_if_rare = 0;  // all ones where p > 1 / 2

  static DropoutParams of(const Dropout& dropout) {
    const bool none = dropout.threshold == 65536;
    const float scale = none ? 1.0f : float(dropout.scale());
    return {dropout,
            scale,
            none ? 1.0f : float(1 / dropout.scale()),
            {dropout.limit(false) * 0x10001u, dropout.limit(true) * 0x10001u},
            dropout.drops_most() ? ~0u : 0u};
  }
};

}  // namespace fa3::cuda
