// SPDX-License-Identifier: Apache-2.0
//
// The latent backward as it stands, computed on the host: through the engine's plan and launch, on
// the fibres of the protocol model, a lane each, beside double precision. In every form of a call,
// in many orders of its warps, and broken.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "api/describe/describe_mla.h"
#include "engine/hopper/latent/backward/bound_sums.cu"
#include "engine/hopper/latent/backward/latent_backward_kernel.cu"
#include "engine/hopper/latent/backward/store_cache_gradient.cu"
#include "engine/hopper/latent/plan_latent.h"
#include "many_orders.h"
#include "runtime.h"
#include "support/latent/gradient_call.h"

namespace fa3::hopper {
namespace {

using machine::Fault;
using machine::Pace;
using test::GradientCase;

// Runs a call as the engine does. "" or what went wrong.
std::string run(const test::GradientCall& call) {
  ptx::late_sums.clear();
  MlaBackwardProblem problem;
  Plan plan;
  const auto step = [](const Status& status) { return status.message(); };
  if (auto said = step(api::describe(call.params(), api::Purpose::call, &problem)); !said.empty()) {
    return said;
  }
  if (auto said = step(plan_mla_backward(problem, &plan)); !said.empty()) return said;
  test::GuardedMemory workspace(FA3_CPU, size_t(plan.workspace_bytes), 64);  // of NaN
  if (auto said = step(run_mla_backward(problem, plan, workspace.data(), nullptr)); !said.empty()) {
    return said;
  }
  return machine::take_launch_error();
}
// What the model says, or a wrong result.
std::string run(const GradientCase& c) {
  test::GradientCall call(c, FA3_CPU);
  const std::string said = run(call);
  return said.empty() ? call.compare() : said;
}

template <int HeadDim, Element E>
void add_kernels() {
  machine::add_kernel(&latent_backward_kernel<HeadDim, E, FloatSums>);
  machine::add_kernel(&latent_backward_kernel<HeadDim, E, IntegerSums>);
  machine::add_kernel(&bound_rows_kernel<E, HeadDim>);
  machine::add_kernel(&scale_rows_kernel<E>);
}

class LatentGradients : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    add_kernels<576, Element::kFp16>();
    add_kernels<576, Element::kBf16>();
    add_kernels<512, Element::kFp16>();
    add_kernels<512, Element::kBf16>();
    machine::add_kernel(&store_cache_gradient_kernel<false>);
    machine::add_kernel(&store_cache_gradient_kernel<true>);
  }
  void TearDown() override {
    machine::launch_setting = before_;
    machine::launch_backwards = false;
  }

  static void expect_right(const GradientCase& c) { EXPECT_EQ(run(c), "") << test::describe(c); }

 private:
  const machine::Setting before_ = machine::launch_setting;
};

TEST_F(LatentGradients, indices_end_anywhere_in_a_block) {
  for (const int64_t top : {0, 1, 31, 64, 65, 200}) {
    expect_right({.tokens = 1, .heads = 5, .top = top, .seed = uint64_t(top)});
  }
}

TEST_F(LatentGradients, heads_of_any_number) {
  for (const int64_t heads : {1, 64, 65, 128}) {
    expect_right({.tokens = 1, .heads = heads, .top = 40, .seed = uint64_t(heads)});
  }
}

// One row in all places of all queries; and blocks that name none between others.
TEST_F(LatentGradients, rows_are_named_often_or_not_at_all) {
  expect_right({.tokens = 3, .heads = 3, .top = 70, .one_row = true});
  expect_right({.tokens = 1, .heads = 3, .gap = 40, .top = 200});
  expect_right({.tokens = 9, .heads = 2, .page_size = 3, .rows = 7, .top = 70, .has_count = true});
  expect_right({.batch = 2, .tokens = 2, .heads = 9, .page_size = 1, .top = 65, .has_count = true});
}

TEST_F(LatentGradients, sinks_and_gradients_of_the_lse) {
  for (const bool in_lse : {false, true}) {
    for (const bool has_d_lse : {false, true}) {
      expect_right({.tokens = 3,
                    .heads = 20,
                    .top = 40,
                    .has_count = true,
                    .sink = true,
                    .lse_with_sink = in_lse,
                    .has_d_lse = has_d_lse});
    }
  }
}

TEST_F(LatentGradients, a_sink_far_above_leaves_the_digits_of_what_it_leaves) {
  for (const float sink : {12.0f, 25.0f}) {
    expect_right({.heads = 3,
                  .top = 40,
                  .sink = true,
                  .lse_with_sink = false,
                  .all_sinks = sink,
                  .wide = true});
  }
}

// Gradients of 1e-4 and large scales are near the ends of float16.
TEST_F(LatentGradients, both_types_and_head_dims_at_any_scale) {
  expect_right({.dtype = FA3_FLOAT16, .dim = 512, .heads = 9, .top = 90, .wide = true});
  expect_right({.dtype = FA3_FLOAT16,
                .heads = 9,
                .top = 90,
                .wide = true,  // float16 has no such numbers
                .scale = 0.002f,
                .of_d_o = 1e-4f});
  expect_right({.dim = 512, .heads = 9, .top = 90, .wide = true, .scale = 0.5f, .spread = 4});
}

// ---- Deterministic calls ----

TEST_F(LatentGradients, deterministic_calls_are_right) {
  const auto expect = [](GradientCase c) {
    c.deterministic = true;
    expect_right(c);
  };
  expect({.tokens = 1, .heads = 65, .top = 65});
  expect({.tokens = 3, .heads = 3, .top = 70, .one_row = true});
  expect({.batch = 2, .tokens = 2, .heads = 9, .page_size = 3, .rows = 7, .has_count = true});
  expect({.dtype = FA3_FLOAT16, .dim = 512, .heads = 9, .gap = 40, .top = 90, .wide = true});
  for (const bool in_lse : {false, true}) {
    expect({.heads = 20,
            .top = 40,
            .sink = true,
            .lse_with_sink = in_lse,
            .has_d_lse = true,
            .wide = true});
  }
}

// Sums in proportion to gradients: from the ends of bfloat16 on.
TEST_F(LatentGradients, deterministic_calls_have_the_digits_of_any_size) {
  for (const float of_d_o : {1e-30f, 1e-9f, 1e9f, 1e30f}) {
    expect_right({.heads = 9, .top = 90, .wide = true, .deterministic = true, .of_d_o = of_d_o});
  }
}

std::vector<std::byte> gradients_of(const GradientCase& c) {
  const test::GradientCall call(c, FA3_CPU);
  EXPECT_EQ(run(call), "");
  return call.gradients();
}

// Rows that many queries name, some of them several times. In float32 the order shows.
TEST_F(LatentGradients, deterministic_calls_have_the_same_bits_in_any_order) {
  GradientCase c{.batch = 2, .tokens = 3, .heads = 66, .rows = 50, .top = 64, .sink = true};
  c.wide = true;
  for (const bool deterministic : {true, false}) {
    c.deterministic = deterministic;
    const std::vector<std::byte> first = gradients_of(c);
    machine::launch_backwards = true;
    machine::launch_setting.pace = {.name = "slow part 0", .weight = machine::slow<4, 7>};
    EXPECT_EQ(gradients_of(c) == first, deterministic);
    machine::launch_backwards = false;
  }
}

// The same call, of which one number is not finite.
std::vector<bool> finite_gradients_of(GradientCase c, bool deterministic,
                                      const fa3_tensor fa3_mla_backward_params::*tensor,
                                      uint16_t bits) {
  c.deterministic = deterministic;
  const test::GradientCall call(c, FA3_CPU);
  const fa3_tensor& broken = call.params().*tensor;
  static_cast<uint16_t*>(broken.data)[3] = bits;
  EXPECT_EQ(run(call), "");
  return call.are_finite();
}

TEST_F(LatentGradients, what_is_not_finite_stays_where_it_is_in_deterministic_calls) {
  using Params = fa3_mla_backward_params;
  const GradientCase c{
      .tokens = 2, .heads = 1, .page_size = 20, .rows = 20, .top = 20, .wide = true};
  const auto whole = finite_gradients_of(c, false, &Params::q, 0);
  for (const uint16_t bits : {0x7f80, 0x7fc0, 0x7f7f}) {  // the last: the largest number
    for (const auto tensor : {&Params::q, &Params::d_o, &Params::o}) {
      const auto expected = finite_gradients_of(c, false, tensor, bits);
      EXPECT_TRUE(expected != whole || bits == 0x7f7f);
      EXPECT_EQ(finite_gradients_of(c, true, tensor, bits), expected) << std::hex << bits;
    }
  }
}

// ---- Orders ----

const Pace kOrders[] = {
    {.name = "often interrupted", .interruption = 0.5},
    {.name = "slow copies", .engines = 0.02},
    {.name = "slow loader", .weight = machine::slow<0, 3>},
    {.name = "slow part 0", .weight = machine::slow<4, 7>},
    {.name = "slow part 1", .weight = machine::slow<8, 11>},
    {.name = "one slow loading warp", .weight = machine::slow<2, 2>},
    {.name = "one slow multiplying warp", .weight = machine::slow<5, 5>},
};

// Every order, or every second one.
template <class Action>
void in_orders(const Action& action) {
  for (size_t i = 0; i < std::size(kOrders); i += machine::by_effort(2, 1, 1)) {
    SCOPED_TRACE(kOrders[i].name);
    action(kOrders[i]);
  }
}

TEST_F(LatentGradients, any_order_of_warps_is_right) {
  in_orders([](const Pace& pace) {
    machine::launch_setting.pace = pace;
    expect_right({.tokens = 1, .heads = 4, .top = 150});
  });
}

// ---- Broken protocols ----

// Every order must be found out with one of these complaints.
void expect_found(Fault fault, const std::vector<std::string>& complaints, int barrier = 0,
                  int64_t top = 150) {
  constexpr auto kFirst =
      uint32_t(machine::kSmemBase + offsetof(LatentBackwardSmem<576>, barriers));
  in_orders([&](const Pace& pace) {
    machine::launch_setting = {.pace = pace,
                               .fault = fault,
                               .kv = {.first_full = kFirst, .first_empty = kFirst + 8, .stages = 1},
                               .barrier = barrier};
    const std::string said = run({.tokens = 1, .heads = 4, .top = top});
    const auto fits = [&](const std::string& c) { return said.starts_with(c); };
    EXPECT_TRUE(std::ranges::any_of(complaints, fits)) << "said: '" << said << "'";
  });
}
class BrokenLatentGradients : public LatentGradients {};

const std::string kPhases = "phases alias", kBarrier = "barrier", kDeadlock = "deadlock";

TEST_F(BrokenLatentGradients, keys_are_released_before_they_were_read) {
  expect_found(Fault::kReleaseBeforeRead, {machine::kOverRead, kPhases, kDeadlock});
}
TEST_F(BrokenLatentGradients, keys_are_released_before_the_last_warp_read_them) {
  expect_found(Fault::kOneArrivalTooFew,
               {machine::kOverRead, machine::kUnfilled, machine::kUntold, kBarrier});
}
TEST_F(BrokenLatentGradients, one_release_is_forgotten) {
  expect_found(Fault::kLostRelease, {kDeadlock}, 0, 330);  // the fourth block's
}
TEST_F(BrokenLatentGradients, keys_are_announced_before_the_last_copies) {
  expect_found(Fault::kOneCopierTooFew, {machine::kUnfilled, machine::kUntold, kBarrier, kPhases});
}
TEST_F(BrokenLatentGradients, the_loader_waits_for_the_other_phase) {
  expect_found(Fault::kProducerPhase, {kDeadlock});
}
TEST_F(BrokenLatentGradients, products_wait_for_the_other_phase) {
  expect_found(Fault::kConsumerPhase, {machine::kUnfilled, machine::kUntold, kDeadlock});
}
TEST_F(BrokenLatentGradients, products_read_without_a_fence) {
  expect_found(Fault::kNoFence, {"no fence.proxy.async"});
}
TEST_F(BrokenLatentGradients, warps_do_not_meet_behind_the_queries) {
  expect_found(Fault::kNoNamedBarrier, {machine::kUnfilled, machine::kUntold}, 1);
}
TEST_F(BrokenLatentGradients, weights_are_stored_before_the_last_were_read) {
  expect_found(Fault::kNoNamedBarrier, {machine::kOverRead, machine::kUntold}, 3);
}
TEST_F(BrokenLatentGradients, weights_are_read_before_all_are_stored) {
  expect_found(Fault::kNoNamedBarrier, {machine::kUnfilled, machine::kUntold, machine::kOverRead},
               5);
}

}  // namespace
}  // namespace fa3::hopper
