// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the backward's main kernel, broken on purpose as in machine/fault.h: in
// every order the model of an SM finds it out. What it does as it stands: protocol_test.cpp.
#include <algorithm>
#include <string>
#include <vector>

#include "backward/backward_run.h"
#include "engine/hopper/catalogue.h"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

constexpr BackwardConfig kOne = kBackwardTiles[2].kernel, kPair = kBackwardTiles.back().kernel,
                         kSplit = kBackwardTiles[kBackwardTiles.size() - 2].kernel,
                         kNarrowPair = kRowsForSomeDenseCalls[1].kernel,
                         kPersistent = kRowsForSomeDenseCalls.front().kernel;
static_assert(!kOne.splits_dkv() && !kOne.pairs() && kSplit.splits_dkv() && !kSplit.pairs());
static_assert(kPair.p_lies_in_ds() && kNarrowPair.d_o_goes_with_ds());

// Without a pipeline the fault is about none.
template <int Stages>
machine::KvBarriers barriers_of(Pipeline<Stages> pipeline) {
  return {pipeline.full(0), pipeline.empty(0), Stages};
}
struct NoPipeline {};
machine::KvBarriers barriers_of(NoPipeline) {
  return {};
}

constexpr auto kQPipeline = [](auto at) { return at.q_pipeline(); };
constexpr auto kDoPipeline = [](auto at) { return at.d_o_pipeline(); };
constexpr auto kDsPipeline = [](auto at) { return at.ds_pipeline(); };
constexpr auto kPPipeline = [](auto at) { return at.p_pipeline(); };
constexpr auto kPairPipeline = [](auto at) { return at.pair_pipeline(); };
constexpr auto kNoPipeline = [](auto) { return NoPipeline{}; };

// A protocol broken on purpose is found out in every order, with one of the complaints.
template <BackwardConfig C>
void expect_found(auto pipeline_of, Fault fault, const std::vector<std::string>& complaints,
                  bool deterministic = false) {
  SCOPED_TRACE(std::to_string(C.shape.head_dim) + (C.pairs() ? " columns, pairs" : " columns"));
  const BackwardRun<C> run({700, 300, 2, 2, 1, {}}, deterministic);
  for (unsigned seed = 0; seed < 20; ++seed) {
    machine::Setting setting{.seed = seed, .fault = fault};
    setting.kv = barriers_of(pipeline_of(BackwardAddresses<C>{machine::kSmemBase}));
    const Outcome outcome = run.run(0, setting);
    const std::string error =
        outcome.error.empty() && deterministic ? run.broken_order(0, outcome) : outcome.error;
    EXPECT_TRUE(std::any_of(complaints.begin(), complaints.end(),
                            [&](const std::string& c) { return error.starts_with(c); }))
        << "said '" << error << "', seed " << seed;
  }
}
void expect_found_in_every_kernel(auto pipeline_of, Fault fault,
                                  const std::vector<std::string>& complaints,
                                  bool deterministic = false) {
  expect_found<kOne>(pipeline_of, fault, complaints, deterministic);
  expect_found<kPair>(pipeline_of, fault, complaints, deterministic);
  expect_found<kNarrowPair>(pipeline_of, fault, complaints, deterministic);
}

void expect_found_in_loads(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of Q");
  expect_found_in_every_kernel(kQPipeline, fault, complaints);
  SCOPED_TRACE("pipeline of dO");
  expect_found_in_every_kernel(kDoPipeline, fault, complaints);
}

TEST(BackwardProtocol, of_a_persistent_CTA_another_key_block_s_tiles_are_found) {
  const std::vector<std::string> complaints = {machine::kUnfilled, machine::kOverRead, "deadlock",
                                               "barrier"};
  for (const Fault fault : {Fault::kConsumerPhase, Fault::kTooFewBytes}) {
    expect_found<kPersistent>([](auto at) { return at.k_pipeline(); }, fault, complaints);
    expect_found<kPersistent>([](auto at) { return at.v_pipeline(); }, fault, complaints);
    expect_found<kPersistent>(kQPipeline, fault, complaints);
    expect_found<kPersistent>(kDoPipeline, fault, complaints);
  }
}

// Where dS lies in P's place, that is given back by P's pipeline.
void expect_found_in_stages_of_ds(Fault fault, const std::vector<std::string>& complaints) {
  expect_found<kOne>(kDsPipeline, fault, complaints);
  expect_found<kPair>(kPPipeline, fault, complaints);
  expect_found<kNarrowPair>(kDsPipeline, fault, complaints);
}

TEST(BackwardProtocol, too_few_bytes_are_found) {
  // The statistics come beside the tile, so half of the bytes is no number of whole copies.
  expect_found_in_loads(Fault::kTooFewBytes, {machine::kUnfilled, machine::kOverRead, "deadlock"});
}
TEST(BackwardProtocol, tiles_multiplied_before_they_have_come_are_found) {
  expect_found_in_loads(Fault::kConsumerPhase, {machine::kUnfilled, "deadlock"});
}
TEST(BackwardProtocol, dS_multiplied_before_it_has_come_is_found) {
  expect_found_in_every_kernel(kDsPipeline, Fault::kConsumerPhase,
                               {machine::kUnfilled, machine::kUntold, "deadlock", "barrier"});
}
TEST(BackwardProtocol, dS_multiplied_without_a_fence_is_found) {
  expect_found_in_every_kernel(kNoPipeline, Fault::kNoFence, {machine::kUnfenced});
}
TEST(BackwardProtocol, dS_written_into_a_stage_in_use_is_found) {
  expect_found_in_stages_of_ds(Fault::kProducerPhase, {"deadlock", machine::kOverRead});
}
TEST(BackwardProtocol, dS_released_by_all_warps_but_one_is_found) {
  expect_found_in_stages_of_ds(Fault::kOneArrivalTooFew, {machine::kOverRead});
}
TEST(BackwardProtocol, dS_never_released_is_a_deadlock) {
  expect_found_in_stages_of_ds(Fault::kOneArrivalTooMany, {"deadlock"});
}

TEST(BackwardProtocol, of_a_pair_the_others_dS_multiplied_before_it_has_come_is_found) {
  const std::vector<std::string> complaints = {machine::kUnfilled, "barrier", "deadlock"};
  for (const Fault fault : {Fault::kConsumerPhase, Fault::kTooFewBytes}) {
    expect_found<kPair>(kPairPipeline, fault, complaints);
    expect_found<kNarrowPair>(kPairPipeline, fault, complaints);
  }
}
TEST(BackwardProtocol, of_a_pair_dS_that_only_its_own_CTA_has_released_is_found) {
  expect_found<kPair>(kPPipeline, Fault::kOwnArrivalsAlone, {machine::kOverRead});
  expect_found<kNarrowPair>(kDsPipeline, Fault::kOwnArrivalsAlone, {machine::kOverRead});
}
TEST(BackwardProtocol, of_a_pair_CTAs_that_do_not_meet_are_found) {
  const std::string left = "a CTA left while another was sent its memory";
  expect_found<kPair>(kNoPipeline, Fault::kNoClusterWait, {"barrier"});
  expect_found<kPair>(kNoPipeline, Fault::kNoLastClusterWait, {left});
  expect_found<kNarrowPair>(kNoPipeline, Fault::kNoClusterWait, {"barrier"});
  expect_found<kNarrowPair>(kNoPipeline, Fault::kNoLastClusterWait, {left});
}

TEST(BackwardProtocol, Q_and_dO_never_released_are_a_deadlock) {
  expect_found_in_loads(Fault::kOneArrivalTooMany, {"deadlock"});
}
// Where dK and dV are split, their warpgroups release stages themselves, with two stages as early
// as they can.
TEST(BackwardProtocol, Q_and_dO_released_before_the_last_warp_of_a_warpgroup_are_found) {
  const std::vector<std::string> complaints = {machine::kOverRead, machine::kUnfilled, "barrier",
                                               "deadlock"};
  expect_found<kSplit>(kQPipeline, Fault::kOneArrivalTooFew, complaints);
  expect_found<kPair>(kQPipeline, Fault::kOneArrivalTooFew, complaints);
  expect_found<kSplit>(kDoPipeline, Fault::kOneArrivalTooFew, complaints);
  expect_found<kPair>(kDoPipeline, Fault::kOneArrivalTooFew, complaints);
  expect_found<kNarrowPair>(kDoPipeline, Fault::kOneArrivalTooFew, complaints);
}

void expect_found_in_semaphore(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of the semaphore");
  expect_found_in_every_kernel([](auto at) { return at.semaphore_pipeline(); }, fault, complaints,
                               true);
}
void expect_found_in_additions(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of additions");
  expect_found_in_every_kernel([](auto at) { return at.added_pipeline(); }, fault, complaints,
                               true);
}

TEST(BackwardProtocol, additions_before_the_semaphore_are_found) {
  expect_found_in_semaphore(Fault::kConsumerPhase,
                            {"an addition out of order", "barrier", "deadlock"});
}
TEST(BackwardProtocol, a_semaphore_never_released_is_a_deadlock) {
  expect_found_in_semaphore(Fault::kOneArrivalTooMany, {"deadlock"});
}
TEST(BackwardProtocol, a_semaphore_released_before_the_additions_is_found) {
  expect_found_in_additions(Fault::kConsumerPhase,
                            {"an addition out of order", "barrier", "deadlock"});
}
TEST(BackwardProtocol, a_semaphore_released_before_the_last_warp_has_added_is_found) {
  expect_found_in_additions(Fault::kOneCopierTooFew,
                            {"an addition out of order", "barrier", "deadlock", "phases alias"});
}

}  // namespace
}  // namespace fa3::hopper
