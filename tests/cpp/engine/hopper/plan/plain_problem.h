// SPDX-License-Identifier: Apache-2.0
// A problem with nothing special, for tests of plans to change.
#pragma once

#include "core/problem.h"
#include "engine/hopper/plan/select/select_kernel.h"

namespace fa3::hopper {

inline Problem plain() {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_k = 4;
  p.head_dim = p.head_dim_v = 128;
  p.dtype = p.o.dtype = DType::bfloat16;
  p.lengths_q.max = p.lengths_k.max = 1000;
  p.device = FA3_CUDA;
  return p;
}

constexpr int kSms = 132;  // an H200's

inline KernelChoice chosen_for(const Problem& problem) {
  return select_kernel_and_split(problem, call_of(problem), kSms);
}

}  // namespace fa3::hopper
