// SPDX-License-Identifier: Apache-2.0
//
// A call plans once, and asks for nothing that it does not need. This executable brings its own
// list of engines: one that counts, and one that refuses.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include "engine/engine.h"

namespace fa3 {
namespace {

int g_plans = 0;
int64_t g_bytes = 0;  // what a plan asks for
void* g_workspace = nullptr;
int g_obeyed = 0;  // the plan that the last run was given, by its tasks
int g_probes = 0;
bool g_wanted_words = false;  // of the last plan
bool g_here = true;           // the engine that refuses
bool g_better_is_here = false;

Status count_plan(Plan* plan) {
  g_wanted_words = plan->wants_words;
  *plan = {.engine = "counting", .num_tasks = ++g_plans, .workspace_bytes = g_bytes};
  return {};
}

Status run(const Plan& plan, void* workspace) {
  g_obeyed = int(plan.num_tasks);
  g_workspace = workspace;
  return {};
}

constexpr Engine kCounting = {
    .name = "counting",
    .id = FA3_ENGINE_CPU,
    .memory = FA3_CPU,
    .automatic = true,
    .probe =
        [] {
          ++g_probes;
          return Availability{true, "counts"};
        },
    .plan_forward = [](const Problem&, Plan* plan) { return count_plan(plan); },
    .run_forward = [](const Problem&, const Plan& plan, void* workspace,
                      void*) { return run(plan, workspace); },
    .plan_backward = [](const BackwardProblem&, Plan* plan) { return count_plan(plan); },
    .run_backward = [](const BackwardProblem&, const Plan& plan, void* workspace,
                       void*) { return run(plan, workspace); },
    .run_merge = nullptr,
};

constexpr Engine kOfGpu = {
    .name = "of a GPU",
    .id = FA3_ENGINE_HOPPER,
    .memory = FA3_CUDA,
    .automatic = true,
    .probe =
        [] {
          return Availability{true, "counts"};
        },
    .plan_forward = [](const Problem&, Plan* plan) { return count_plan(plan); },
    .run_forward = [](const Problem&, const Plan& plan, void* workspace,
                      void*) { return run(plan, workspace); },
    .plan_backward = nullptr,
    .run_backward = nullptr,
    .run_merge = nullptr,
};

// Comes first, and has no kernels.
constexpr Engine kBetter = {
    .name = "better",
    .id = FA3_ENGINE_STANDARD,
    .memory = FA3_CPU,
    .automatic = true,
    .probe =
        [] {
          return Availability{g_better_is_here, "its machine is not here"};
        },
    .plan_forward = [](const Problem&, Plan*) { return Status(StatusCode::unsupported, "none"); },
    .run_forward = nullptr,
    .plan_backward = [](const BackwardProblem&,
                        Plan*) { return Status(StatusCode::unsupported, "none"); },
    .run_backward = nullptr,
    .run_merge = nullptr,
};

constexpr Engine kRefusing = {
    .name = "refusing",
    .id = FA3_ENGINE_REFERENCE,
    .memory = FA3_CPU,
    .automatic = false,
    .probe =
        [] {
          return Availability{g_here, "its machine is not here"};
        },
    .plan_forward = [](const Problem&, Plan*) { return Status(StatusCode::unsupported, "never"); },
    .run_forward = nullptr,
    .plan_backward = nullptr,
    .run_backward = nullptr,
    .run_merge = nullptr,
};

// A valid call of either pass; the counting engine reads no tensor.
struct Calls {
  alignas(256) std::byte lent[512];
  float data[11][32] = {};
  ForwardArgs forward;
  BackwardArgs backward;

  explicit Calls(int64_t bytes) {
    g_plans = g_obeyed = g_probes = 0;
    g_bytes = bytes;
    g_workspace = nullptr;
    forward.q = backward.q = bshd(data[0], FA3_FLOAT32, 1, 2, 2, 8);
    forward.k = backward.k = bshd(data[1], FA3_FLOAT32, 1, 2, 2, 8);
    forward.v = backward.v = bshd(data[2], FA3_FLOAT32, 1, 2, 2, 8);
    forward.o = backward.o = bshd(data[3], FA3_FLOAT32, 1, 2, 2, 8);
    backward.lse = contiguous(data[4], FA3_FLOAT32, {1, 2, 2});
    backward.d_o = bshd(data[5], FA3_FLOAT32, 1, 2, 2, 8);
    backward.dq = bshd(data[6], FA3_FLOAT32, 1, 2, 2, 8);
    backward.dk = bshd(data[7], FA3_FLOAT32, 1, 2, 2, 8);
    backward.dv = bshd(data[8], FA3_FLOAT32, 1, 2, 2, 8);
  }
};

constexpr size_t kRoomToAlign = 64;  // of workspaces on a CPU

struct Lender {
  void* memory;
  int calls = 0;
  size_t bytes = 0;

  static void* lend(void* context, size_t bytes) {
    auto* self = static_cast<Lender*>(context);
    ++self->calls;
    self->bytes = bytes;
    return self->memory;
  }
};

TEST(PlanOnce, with_a_workspace_of_the_cpp_face_that_has_to_grow) {
  Calls calls(1000);
  Workspace workspace;
  ASSERT_TRUE(forward(calls.forward, workspace).ok()) << fa3_last_error();
  EXPECT_EQ(g_plans, 1);
  EXPECT_GE(workspace.bytes(), 1000u);
  EXPECT_EQ(g_workspace, workspace.data());
  ASSERT_TRUE(backward(calls.backward, workspace).ok()) << fa3_last_error();
  EXPECT_EQ(g_plans, 2);
}

TEST(PlanOnce, with_an_allocator_which_is_asked_once_for_what_the_plan_says) {
  Calls calls(200);
  Lender lender{calls.lent};
  EXPECT_EQ(fa3_forward_with_allocator(&calls.forward, Lender::lend, &lender, nullptr), FA3_OK);
  EXPECT_EQ(g_plans, 1);
  EXPECT_EQ(g_obeyed, 1);
  EXPECT_EQ(lender.calls, 1);
  EXPECT_EQ(lender.bytes, 200u + kRoomToAlign);
  EXPECT_EQ(g_workspace, calls.lent);
  EXPECT_EQ(fa3_backward_with_allocator(&calls.backward, Lender::lend, &lender, nullptr), FA3_OK);
  EXPECT_EQ(g_plans, 2);
  EXPECT_EQ(lender.calls, 2);
}

TEST(PlanOnce, with_a_workspace_of_queried_size) {
  Calls calls(256);
  size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&calls.forward, &bytes), FA3_OK);
  EXPECT_EQ(g_plans, 1);  // the question is a plan of its own
  ASSERT_EQ(fa3_forward(&calls.forward, calls.lent, bytes, nullptr), FA3_OK);
  EXPECT_EQ(g_plans, 2);
  EXPECT_EQ(g_obeyed, 2);
}

// Words and probes take longer than all the rest of a small call.
TEST(Plan, is_put_into_words_only_for_who_reads_them) {
  Calls calls(0);
  ASSERT_EQ(fa3_forward(&calls.forward, nullptr, 0, nullptr), FA3_OK);
  EXPECT_FALSE(g_wanted_words);
  size_t size = 0;
  ASSERT_EQ(fa3_forward_plan_text(&calls.forward, nullptr, 0, &size), FA3_OK);
  EXPECT_TRUE(g_wanted_words);
  ASSERT_EQ(fa3_forward_workspace_size(&calls.forward, &size), FA3_OK);
  EXPECT_FALSE(g_wanted_words);
  ASSERT_EQ(fa3_forward_plan_text(&calls.forward, nullptr, 0, &size), FA3_OK);
  ASSERT_EQ(fa3_backward_supported(&calls.backward), FA3_OK);
  EXPECT_FALSE(g_wanted_words);
  EXPECT_EQ(g_probes, 0);
}

TEST(Refusal, says_that_the_engine_is_not_here_before_what_it_would_refuse) {
  Calls calls(0);
  calls.forward.options.engine = FA3_ENGINE_REFERENCE;
  for (const auto& [here, reason] :
       {std::pair{true, "never"}, {false, "its machine is not here"}}) {
    g_here = here;
    EXPECT_EQ(fa3_forward(&calls.forward, nullptr, 0, nullptr), FA3_UNSUPPORTED);
    EXPECT_EQ(fa3_last_error(), std::string("no engine can run this call: refusing: ") + reason);
  }
}

TEST(Query, says_who_computes_a_call_and_whether_a_better_engine_refused_it) {
  Calls calls(0);
  for (const bool here : {false, true}) {
    g_better_is_here = here;
    fa3_answer forward, backward;
    ASSERT_EQ(fa3_forward_query(&calls.forward, &forward), FA3_OK) << fa3_last_error();
    ASSERT_EQ(fa3_backward_query(&calls.backward, &backward), FA3_OK) << fa3_last_error();
    for (const fa3_answer& answer : {forward, backward}) {
      EXPECT_EQ(answer.supported, 1);
      EXPECT_EQ(answer.engine, FA3_ENGINE_CPU);
      EXPECT_EQ(answer.first_engine, here ? 0 : 1);
      EXPECT_STREQ(answer.reason, "");
    }
  }
  g_better_is_here = false;
}

TEST(Query, of_a_refused_call_is_an_answer_and_of_a_wrong_one_an_error) {
  Calls calls(0);
  g_here = true;
  calls.forward.options.engine = FA3_ENGINE_REFERENCE;
  fa3_answer answer;
  ASSERT_EQ(fa3_forward_query(&calls.forward, &answer), FA3_OK) << fa3_last_error();
  EXPECT_EQ(answer.supported, 0);
  EXPECT_STREQ(answer.reason, "no engine can run this call: refusing: never");
  calls.forward.options.scale = -1;
  EXPECT_EQ(fa3_forward_query(&calls.forward, &answer), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(answer.supported, 0);
  EXPECT_EQ(fa3_forward_query(&calls.forward, nullptr), FA3_INVALID_ARGUMENT);
}

TEST(Allocator, is_not_asked_for_nothing_nor_by_a_call_that_is_refused) {
  Calls calls(0);
  Lender lender{calls.lent};
  EXPECT_EQ(fa3_forward_with_allocator(&calls.forward, Lender::lend, &lender, nullptr), FA3_OK);
  g_bytes = 200;
  calls.forward.options.scale = -1;
  EXPECT_EQ(fa3_forward_with_allocator(&calls.forward, Lender::lend, &lender, nullptr),
            FA3_INVALID_ARGUMENT);
  EXPECT_EQ(lender.calls, 0);
}

TEST(Workspace, of_a_cpu_is_taken_at_any_address_and_of_a_gpu_aligned_to_256) {
  for (size_t offset : {0, 1, 8, 63, 64}) {
    Calls calls(200);
    ASSERT_EQ(fa3_forward(&calls.forward, calls.lent + offset, 200 + kRoomToAlign, nullptr), FA3_OK)
        << fa3_last_error();
    const auto* given = static_cast<std::byte*>(g_workspace);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(given) % kRoomToAlign, 0u);
    EXPECT_GE(given, calls.lent + offset);
    EXPECT_LE(given + 200, calls.lent + offset + 200 + kRoomToAlign);
  }
  Calls calls(200);
  for (fa3_tensor* t : {&calls.forward.q, &calls.forward.k, &calls.forward.v, &calls.forward.o}) {
    t->device_type = FA3_CUDA;
  }
  size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&calls.forward, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_EQ(bytes, 200u);
  EXPECT_EQ(fa3_forward(&calls.forward, calls.lent + 8, 200, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fa3_last_error()).find("aligned to 256"), std::string::npos);
  EXPECT_EQ(fa3_forward(&calls.forward, calls.lent, 200, nullptr), FA3_OK) << fa3_last_error();
}

TEST(Allocator, that_has_none_or_is_none_is_an_error_and_nothing_runs) {
  Calls calls(200);
  Lender lender{nullptr};
  EXPECT_EQ(fa3_forward_with_allocator(&calls.forward, Lender::lend, &lender, nullptr),
            FA3_OUT_OF_MEMORY);
  EXPECT_STREQ(fa3_last_error(), "workspace: expected 264 bytes from the allocator, got none");
  EXPECT_EQ(fa3_backward_with_allocator(&calls.backward, nullptr, nullptr, nullptr),
            FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).rfind("allocate:", 0), 0u);
  EXPECT_EQ(g_obeyed, 0);
}

}  // namespace

std::span<const Engine* const> engines() {
  static constexpr const Engine* kEngines[] = {&kOfGpu, &kBetter, &kCounting, &kRefusing};
  return kEngines;
}

}  // namespace fa3
