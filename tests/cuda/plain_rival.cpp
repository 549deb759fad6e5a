// SPDX-License-Identifier: Apache-2.0
// The plain kernel behind the C entry of benchmarks/contenders/library.py, to be timed beside the
// library's.
#include "cuda/plain_launch.h"
#include "cuda/rival_problem.h"

FA3_RIVAL const char* rival_name() {
  return "plain";
}

FA3_RIVAL int64_t rival_workspace(const RivalProblem*) {
  return 0;
}

FA3_RIVAL int rival_forward(const RivalProblem* p, void* stream) {
  using namespace fa3::hopper;
  if (p->dtype != FA3_FLOAT16 && p->dtype != FA3_BFLOAT16) return 1;
  const Element element = p->dtype == FA3_BFLOAT16 ? Element::kBf16 : Element::kFp16;
  return launch_plain(int(p->head_dim), element, call_of(*p), static_cast<cudaStream_t>(stream));
}
