// SPDX-License-Identifier: Apache-2.0
//
// What a call does, counted: for those who watch it (monitor.h).
#pragma once

#include <span>
#include <string>

#include "core/append.h"
#include "core/dequantize.h"
#include "core/latent.h"
#include "core/problem.h"

namespace fa3::api {

struct Work {
  const char* kind;  // "forward", "decode", ...: one of few, for sums over many calls
  DType dtype;       // whose products the device's limit is about
  std::string call;  // "forward bfloat16 b4 h16:4 s4096x4096 d128 causal": equal calls, equal words
  double flops = 0;  // of the matrix products: 2 (d + dv) a visible pair, backward 2.5 times that
  double bytes = 0;  // of the operands, each once
  bool known = true;  // false: lengths are in device memory, where a call does not read them
};

Work work_of(const Problem& problem);
Work work_of(const BackwardProblem& problem);
Work work_of(const QuantizeProblem& problem);
Work work_of(std::span<const QuantizeProblem> problems);  // at least one; told as the first is
Work work_of(const DequantizeProblem& problem);           // likewise
Work work_of(const MergeProblem& problem);
Work work_of(const AppendProblem& problem);
Work work_of(const MlaProblem& problem);
Work work_of(const MlaBackwardProblem& problem);
Work work_of(const MlaAppendProblem& problem);
Work work_of(const MlaGatherProblem& problem);

}  // namespace fa3::api
