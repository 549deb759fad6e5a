// SPDX-License-Identifier: Apache-2.0
//
// FA3_CPU_ISA really chose the instruction set that this run is about.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

TEST(InstructionSet, named_in_the_environment_is_the_one_in_the_plan) {
  const char* isa = std::getenv("FA3_CPU_ISA");
  if (isa == nullptr) GTEST_SKIP() << "FA3_CPU_ISA is not set";
  const Case c = dense_case(1, 64, 64, 1, 1, 64, 64);
  const Inputs inputs = make_inputs(c);
  const Tensor o(c.o_shape(), FA3_FLOAT32), lse(c.lse_shape(), FA3_FLOAT32);
  const fa3_forward_params params = forward_params(FA3_ENGINE_CPU, c, inputs, o, lse);
  char text[2000];
  ASSERT_EQ(fa3_forward_plan_text(&params, text, sizeof(text), nullptr), FA3_OK)
      << fa3_last_error();
  EXPECT_NE(std::string(text).find(std::string("tiled ") + isa + "\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace fa3::test
