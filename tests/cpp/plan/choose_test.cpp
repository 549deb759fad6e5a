// SPDX-License-Identifier: Apache-2.0
#include "plan/choose.h"

#include <gtest/gtest.h>

#include <cctype>
#include <utility>

#include "core/error.h"
#include "plan/plan_text.h"

namespace fa3::test {
namespace {

Problem small_problem() {
  Problem problem;
  problem.batch = problem.heads_q = problem.heads_k = 1;
  problem.head_dim = problem.head_dim_v = 8;
  problem.lengths_q = problem.lengths_k = {.max = 4, .total = 4};
  return problem;
}

TEST(Choose, takes_the_tiled_engine_for_host_memory) {
  Choice choice;
  ASSERT_TRUE(choose(small_problem(), &choice).ok());
  EXPECT_EQ(choice.engine->id, FA3_ENGINE_CPU);
  EXPECT_EQ(choice.plan.engine, "cpu");
}

TEST(Choose, gives_a_reason_that_ends_with_a_word) {
  Problem problem = small_problem();
  for (int64_t keys : {4, 100000}) {  // one task; keys that are split
    problem.lengths_k = {.max = keys, .total = keys};
    Choice choice{.plan = {.wants_words = true}};
    ASSERT_TRUE(choose(problem, &choice).ok());
    EXPECT_TRUE(std::isalnum(choice.plan.why.back())) << choice.plan.why << "|";
  }
}

// Each engine that was considered gives its own reason; those that are chosen by name alone do not.
TEST(Choose, of_memory_that_no_engine_takes_gives_every_candidates_reason) {
  Problem problem = small_problem();
  problem.device = FA3_CUDA;
  problem.dtype = DType::float32;  // no engine for GPUs takes it
  Choice choice;
  const Status status = choose(problem, &choice);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("cpu: takes cpu tensors, got cuda"), std::string::npos)
      << status.message();
  EXPECT_EQ(status.message().find("reference:"), std::string::npos) << status.message();
}

TEST(Choose, refuses_an_engine_of_another_build_by_its_number) {
  Problem problem = small_problem();
  problem.engine = static_cast<fa3_engine_id>(7);
  Choice choice;
  const Status status = choose(problem, &choice);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("the id 7"), std::string::npos) << status.message();
}

// Who asks for a GPU's engine, or has a GPU's tensors, learns what to do.
TEST(Choose, of_a_build_without_CUDA_names_the_engine_and_the_way_to_it) {
  for (const Engine* engine : engines()) {
    if (engine->memory == FA3_CUDA) GTEST_SKIP() << "this build has engines for GPUs";
  }
  for (const auto& [id, name] :
       {std::pair{FA3_ENGINE_HOPPER, "hopper"}, std::pair{FA3_ENGINE_AMPERE, "ampere"}}) {
    Problem problem = small_problem();
    problem.engine = id;
    Choice choice;
    EXPECT_EQ(choose(problem, &choice).message(),
              concat("no engine can run this call: ", name,
                     ": not in this build; build fa3 with the CUDA toolkit (nvcc in PATH)"));
  }
  Problem problem = small_problem();
  problem.device = FA3_CUDA;
  Choice choice;
  EXPECT_EQ(
      choose(problem, &choice).message(),
      "no engine can run this call: cpu: takes cpu tensors, got cuda; fa3 never moves data; no "
      "engine of this build takes them: build fa3 with the CUDA toolkit (nvcc in PATH)");
}

TEST(Choose, obeys_a_named_engine) {
  for (const Engine* engine : engines()) {
    if (engine->memory != FA3_CPU) continue;
    Problem problem = small_problem();
    problem.engine = engine->id;
    Choice choice;
    ASSERT_TRUE(choose(problem, &choice).ok()) << engine->name;
    EXPECT_EQ(choice.engine, engine);
  }
}

TEST(Choose, refuses_memory_that_an_engine_does_not_take_and_says_so) {
  Problem problem = small_problem();
  problem.engine = FA3_ENGINE_REFERENCE;
  problem.device = FA3_CUDA;
  Choice choice;
  const Status status = choose(problem, &choice);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("cuda"), std::string::npos) << status.message();
}

TEST(Choose, takes_float8_where_an_engine_does) {
  Problem problem = small_problem();
  problem.dtype = problem.kv_dtype = DType::float8_e4m3;
  Choice choice;
  EXPECT_TRUE(choose(problem, &choice).ok());
  EXPECT_EQ(choice.plan.engine, "cpu");
  problem.engine = FA3_ENGINE_STANDARD;
  const Status status = choose(problem, &choice);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("float8_e4m3"), std::string::npos) << status.message();
}

TEST(PlanText, gives_every_number_of_the_plan) {
  Plan plan{.engine = "the-engine",
            .kernel = "the-kernel",
            .block_q = 111,
            .block_k = 222,
            .packed_heads = 222333,
            .num_splits = 333,
            .num_tasks = 444,
            .num_threads = 555,
            .workspace_bytes = 666,
            .why = "because"};
  std::string text = plan_text(plan);
  for (const char* word : {"the-engine", "the-kernel", "111", "222", "222333", "splits 333", "444",
                           "555", "666", "because"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
  plan.num_splits = 0;
  text = plan_text(plan);
  EXPECT_NE(text.find("splits by length"), std::string::npos) << text;
}

}  // namespace
}  // namespace fa3::test
