// SPDX-License-Identifier: Apache-2.0
//
// The shapes and scores of kernel_cases.h on every engine: each branch of a tiled softmax.
#include <gtest/gtest.h>

#include "contract/fixture.h"
#include "support/cases/kernel_cases.h"

namespace fa3::test {
namespace {

class KernelCases : public CaseTest {};

TEST_P(KernelCases, agree_with_float64) {
  if (does(GetParam().c)) {
    EXPECT_TRUE(forward_agrees({engine(), GetParam().c}));
  }
}

// An engine of the host shares its cores with the oracle, and has no hundred tiles in work at once.
bool affordable(const EngineUnderTest& engine, const Case& c) {
  const int64_t work =
      c.batch * c.heads_q * c.q.rows * c.k.rows * (c.dim + c.dim_v);  // multiplications
  return engine.memory == FA3_CUDA || work <= by_effort<int64_t>(1 << 22, 1 << 27, 1 << 30);
}

std::vector<EngineCase> cases() {
  struct Kind {
    int64_t dim, dim_v;
    fa3_dtype dtype;
  };
  std::vector<EngineCase> cases;
  for (const EngineUnderTest& engine : engines_under_test()) {
    for (const Kind& kind :
         {Kind{64, 64, FA3_BFLOAT16}, {128, 128, FA3_FLOAT16}, {96, 64, FA3_FLOAT32}}) {
      const Case plain = dense_case(1, 64, 65, 1, 1, kind.dim, kind.dim_v, kind.dtype);
      if (const std::string reason = refusal(engine, plain, Pass::forward); !reason.empty()) {
        leave_out(reason);
        continue;
      }
      for (const auto& [name, c] : kernel_cases(kind.dim, kind.dim_v, kind.dtype)) {
        if (!affordable(engine, c)) continue;
        cases.push_back({engine, c, std::string(name) + "_" + name_of(c.dtype)});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(kernel, KernelCases, testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace fa3::test
