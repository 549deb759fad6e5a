// SPDX-License-Identifier: Apache-2.0
//
// fa3 bench --ablation: variants of the Hopper forward side by side. ablation_cuda.cpp where CUDA was
// found, ablation_absent.cpp elsewhere.
#pragma once

#include <string>

#include "cli/operands.h"

namespace fa3::cli {

// The shape of the paper's table 2; keys are as many as queries.
struct AblationFlags {
  Shape shape{.batch = 4,
              .heads = 16,
              .kv_heads = 16,
              .seqlen_q = 8448,
              .seqlen_k = 8448,
              .head_dim = 128,
              .head_dim_v = 128};
  bool causal = false;
  int repeats = 0;  // rounds; 0 = 21
  std::string json;
};

void run_ablation(AblationFlags flags);

}  // namespace fa3::cli
