// SPDX-License-Identifier: Apache-2.0
//
// A run does what its plan says: block sizes come from the plan and are not chosen again.
#include <gtest/gtest.h>

#include <memory>

#include "engine/cpu/tiled/tiled.h"
#include "problem.h"

namespace fa3::cpu {
namespace {

using test::DenseProblem;

std::vector<float> outputs_with(DenseProblem& problem, const Plan& plan) {
  const auto memory = std::make_unique<std::byte[]>(plan.workspace_bytes + 256);
  std::fill(problem.o_data.begin(), problem.o_data.end(), NAN);
  void* workspace = memory.get();
  size_t space = plan.workspace_bytes + 256;
  std::align(256, plan.workspace_bytes, workspace, space);
  EXPECT_TRUE(run_forward(problem, plan, workspace, nullptr).ok());
  return problem.o_data;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::abs(double{a[i]} - b[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

TEST(ForwardPlan, is_obeyed) {
  DenseProblem problem(200, 700, 2, 64);
  Plan planned;
  ASSERT_TRUE(plan_forward(problem, &planned).ok());
  const std::vector<float> o = outputs_with(problem, planned);

  Plan narrow = planned;
  narrow.block_k = planned.block_k / 2;  // other tiles of keys: sums in another order
  const std::vector<float> o_narrow = outputs_with(problem, narrow);
  EXPECT_GT(distance(o, o_narrow), 0) << "the plan's block_k was ignored";
  EXPECT_LT(distance(o, o_narrow), 1e-5);

  Plan fewer_tasks = planned;  // the first tasks only: their rows alone are written
  fewer_tasks.num_tasks = 1;
  EXPECT_TRUE(std::isnan(distance(o, outputs_with(problem, fewer_tasks))));

  Plan small = planned;  // as many tasks as blocks of that size
  small.block_q = planned.block_q / 12 * 6;
  small.num_tasks = 2 * ((200 + small.block_q - 1) / small.block_q);
  ASSERT_NE(small.num_tasks, planned.num_tasks);
  EXPECT_EQ(distance(o, outputs_with(problem, small)), 0) << "rows are computed alike in any block";
}

// (b, s, h, d) memory: with few threads a task takes all eight heads of a key, with many only one.
TEST(ForwardPlan, heads_taken_together_get_the_bits_they_get_alone) {
  DenseProblem problem(1, 2100, 8, 32);
  problem.num_threads = 1;
  Plan together;
  ASSERT_TRUE(plan_forward(problem, &together).ok());
  const std::vector<float> o = outputs_with(problem, together);
  const std::vector<float> lse = problem.lse_data;

  problem.num_threads = 64;
  Plan alone;
  ASSERT_TRUE(plan_forward(problem, &alone).ok());
  ASSERT_EQ(alone.num_tasks, 8 * together.num_tasks);
  std::fill(problem.lse_data.begin(), problem.lse_data.end(), NAN);
  EXPECT_EQ(distance(o, outputs_with(problem, alone)), 0);
  EXPECT_EQ(distance(lse, problem.lse_data), 0);
}

}  // namespace
}  // namespace fa3::cpu
