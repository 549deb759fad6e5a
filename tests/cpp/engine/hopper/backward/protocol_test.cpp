// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the backward's main kernel, run as it stands in the sources on a machine
// that schedules at random (machine/machine.h): every product of every query block is made once and
// of the right tiles, every part of dQ is added once, dK and dV are stored once. Broken protocols
// must be found out.
#include <algorithm>
#include <cstdlib>
#include <span>

#include "backward_run.h"
#include "engine/hopper/tables/dropout_backward_table.h"
#include "engine/hopper/tables/mask_backward_table.h"
#include "engine/hopper/tables/wide_backward_table.h"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

constexpr MaskRuleOf<int> kFull, kCausal{.right = 0};

constexpr Shape kShapes[] = {
    {.seqlen_q = 700, .seqlen_k = 300, .heads = 2, .kv_heads = 2, .batches = 1, .mask = kFull},
    {.seqlen_q = 300, .seqlen_k = 500, .heads = 6, .kv_heads = 2, .batches = 2, .mask = kCausal},
    {.seqlen_q = 900, .seqlen_k = 200, .heads = 3, .kv_heads = 1, .batches = 1, .mask = kCausal},
    {.seqlen_q = 1, .seqlen_k = 1, .heads = 1, .kv_heads = 1, .batches = 1, .mask = kCausal},
    {.seqlen_q = 0, .seqlen_k = 150, .heads = 1, .kv_heads = 1, .batches = 1, .mask = kFull},
};

// For the general kernels as well. The second has keys that no query sees, and blocks of them.
constexpr Shape kWindows[] = {
    {.seqlen_q = 700,
     .seqlen_k = 700,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = 100, .right = 0}},
    {.seqlen_q = 200,
     .seqlen_k = 900,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = 130, .right = 70}},
    {.seqlen_q = 900,
     .seqlen_k = 400,
     .heads = 2,
     .kv_heads = 2,
     .batches = 2,
     .mask = {.left = 64}},
    {.seqlen_q = 500,
     .seqlen_k = 600,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.right = 0, .chunk = 150}},
    // Beside the diagonal: the last keys, or the first, are seen by nobody.
    {.seqlen_q = 500,
     .seqlen_k = 600,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = 250, .right = -200}},
    {.seqlen_q = 600,
     .seqlen_k = 600,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = -150}},
};

// Varlen sequences, empty ones on either side, and rows that none owns.
constexpr int32_t kQueries[] = {0, 0, 300, 301, 301, 500, 513};
constexpr int32_t kKeys[] = {0, 40, 340, 340, 400, 700, 717};
constexpr int32_t kUsed[] = {0, 1, 300, 171};
constexpr Shape kVarlen[] = {
    {.seqlen_q = 300,
     .seqlen_k = 300,
     .heads = 3,
     .kv_heads = 1,
     .batches = 6,
     .mask = kCausal,
     .cu_q = kQueries,
     .cu_k = kKeys},
    {.seqlen_q = 200,
     .seqlen_k = 300,
     .heads = 2,
     .kv_heads = 2,
     .batches = 4,
     .mask = {.left = 90},
     .used_k = kUsed},
    {.seqlen_q = 300,
     .seqlen_k = 300,
     .heads = 2,
     .kv_heads = 2,
     .batches = 6,
     .mask = {.left = -20, .right = 150},
     .cu_q = kQueries,
     .cu_k = kKeys},
};

unsigned num_seeds() {
  return std::getenv("FA3_TEST_FULL") ? 20 : std::getenv("FA3_TEST_QUICK") ? 1 : 3;
}

template <BackwardConfig C>
void all_work_is_done_once(std::span<const Shape> shapes, bool deterministic = false) {
  for (const Shape& shape : shapes) {
    const BackwardRun<C> run(shape, deterministic);
    for (const machine::Pace& pace : machine::kManyPaces) {
      for (unsigned seed = 0; seed < num_seeds(); ++seed) {
        const int tile = int((seed * 7 + unsigned(&pace - machine::kManyPaces)) %
                             unsigned(std::max(run.tiles(), 1)));
        SCOPED_TRACE(std::string(pace.name) + ", seed " + std::to_string(seed) + ", tile " +
                     std::to_string(tile) + ", " + std::to_string(shape.seqlen_q) + "x" +
                     std::to_string(shape.seqlen_k));
        run.expect_all_work_done(tile, run.run(tile, {.seed = seed, .pace = pace}));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// With dropout P has a second form: in registers, and beyond 128 columns in shared memory.
TEST(BackwardProtocol, dropout_is_worked_through_once_in_any_order) {
  constexpr BackwardConfig kDense =
      kDropoutBackwardTable.front().config.with(Element::kBf16, Variant::kDense);
  constexpr BackwardConfig kCapped =
      kDropoutBackwardTable.back().config.with(Element::kBf16, Variant::kCapped);
  constexpr BackwardConfig kKeepsP =
      kDropoutBackwardTable[5].config.with(Element::kBf16, Variant::kCapped);
  constexpr BackwardConfig kGeneral =
      kDropoutBackwardTable[2].config.with(Element::kBf16, Variant::kGeneral);
  static_assert(kDense.signs_p() && kGeneral.signs_p() && kKeepsP.keeps_p());
  static_assert(kCapped.splits_dkv());
  all_work_is_done_once<kDense>(std::span(kShapes));
  all_work_is_done_once<kGeneral>(std::span(kVarlen));
  all_work_is_done_once<kKeepsP>(std::span(kWindows));
  all_work_is_done_once<kDense.deterministic()>(std::span(kShapes).first(3), true);
  all_work_is_done_once<kCapped>(std::span(kVarlen));
}

// Gradients of keys in float32 leave by threads.
TEST(BackwardProtocol, float32_gradients_are_stored_once_in_any_order) {
  constexpr BackwardConfig kDense = kWideBackwardTable[1].config;
  constexpr BackwardConfig kGeneral = kWideBackwardTable[2].config.with(Element::kBf16,  //
                                                                        Variant::kGeneral);
  static_assert(kDense.wide && kGeneral.wide && kGeneral.general());
  all_work_is_done_once<kDense>(std::span(kShapes));
  all_work_is_done_once<kDense.deterministic()>(std::span(kShapes).first(3), true);
  all_work_is_done_once<kGeneral>(std::span(kWindows).first(3));
  all_work_is_done_once<kGeneral>(std::span(kVarlen));
}

// Query blocks that end in their first half; key blocks that nobody sees.
TEST(BackwardProtocol, block_masks_are_worked_through_once_in_any_order) {
  constexpr Shape kListed[] = {
      {.seqlen_q = 900, .seqlen_k = 700, .heads = 4, .kv_heads = 2, .batches = 2, .mask = kFull},
      {.seqlen_q = 300, .seqlen_k = 1500, .heads = 6, .kv_heads = 2, .batches = 1, .mask = kFull},
      {.seqlen_q = 40, .seqlen_k = 60, .heads = 3, .kv_heads = 3, .batches = 3, .mask = kFull},
  };
  [&]<int... Row>(std::integer_sequence<int, Row...>) {
    const auto check = [&]<BackwardConfig C>() {
      all_work_is_done_once<C>(std::span(kListed));
      all_work_is_done_once<C.deterministic()>(std::span(kListed), true);
      constexpr BackwardConfig kGeneral = C.with(Element::kBf16, Variant::kGeneral);
      all_work_is_done_once<kGeneral>(std::span(kVarlen));
      all_work_is_done_once<kGeneral.deterministic()>(std::span(kVarlen), true);
    };
    (check.template operator()<kMaskBackwardTable[Row].config>(), ...);
  }
  (std::make_integer_sequence<int, int(kMaskBackwardTable.size())>());
}

// Calls check.operator()<C>() for every row's kernel of a variant.
template <Variant V, class Check>
void for_every_row(const Check& check) {
  [&]<int... Row>(std::integer_sequence<int, Row...>) {
    (check.template operator()<kBackwardTable[Row].config.with(Element::kBf16, V)>(), ...);
  }
  (std::make_integer_sequence<int, int(kBackwardTable.size())>());
}

TEST(BackwardProtocol, every_row_of_the_table_does_all_work_once_in_any_order) {
  for_every_row<Variant::kDense>(
      []<BackwardConfig C>() { all_work_is_done_once<C>(std::span(kShapes)); });
}

TEST(BackwardProtocol, windows_are_worked_through_once_in_any_order) {
  for_every_row<Variant::kGeneral>(
      []<BackwardConfig C>() { all_work_is_done_once<C>(std::span(kWindows)); });
}

TEST(BackwardProtocol, sequences_of_any_length_are_worked_through_once_in_any_order) {
  for_every_row<Variant::kGeneral>(
      []<BackwardConfig C>() { all_work_is_done_once<C>(std::span(kVarlen)); });
}

TEST(BackwardProtocol, capped_scores_are_worked_through_once_in_any_order) {
  for_every_row<Variant::kCapped>([]<BackwardConfig C>() {
    all_work_is_done_once<C>(std::span(kShapes).first(2));
    all_work_is_done_once<C>(std::span(kVarlen).first(1));
  });
}

// A head each; and several, where there are many key blocks.
TEST(BackwardProtocol, head_splits_add_up_dk_and_dv_once_in_any_order) {
  constexpr Shape kSplit[] = {
      {.seqlen_q = 300, .seqlen_k = 500, .heads = 14, .kv_heads = 2, .batches = 2, .mask = kCausal},
      {.seqlen_q = 60,
       .seqlen_k = 60,
       .heads = 1840,
       .kv_heads = 230,
       .batches = 2,
       .mask = kCausal},
  };
  for_every_row<Variant::kDense>([&]<BackwardConfig C>() {
    EXPECT_EQ(BackwardRun<C>(kSplit[0]).head_splits(), 7);
    EXPECT_EQ(BackwardRun<C>(kSplit[1]).head_splits(), 4);
    all_work_is_done_once<C>(std::span(kSplit));
  });
}

TEST(BackwardProtocol, deterministic_calls_add_to_dq_in_one_order) {
  for_every_row<Variant::kDense>([]<BackwardConfig C>() {
    all_work_is_done_once<C.deterministic()>(std::span(kShapes).first(3), true);
  });
  for_every_row<Variant::kGeneral>([]<BackwardConfig C>() {
    all_work_is_done_once<C.deterministic()>(std::span(kWindows), true);
    all_work_is_done_once<C.deterministic()>(std::span(kVarlen), true);
  });
  for_every_row<Variant::kCapped>([]<BackwardConfig C>() {
    all_work_is_done_once<C.deterministic()>(std::span(kVarlen).first(1), true);
  });
}

// A pipeline broken on purpose is found out in every order, with one of the complaints.
template <int Row = 2>
void expect_found(auto pipeline_of, int stages, Fault fault,
                  const std::vector<std::string>& complaints, bool deterministic = false) {
  constexpr BackwardConfig kConfig = kBackwardTable[Row].config;
  const BackwardRun<kConfig> run(kShapes[0], deterministic);
  const auto pipeline = pipeline_of(BackwardAddresses<kConfig>{machine::kSmemBase});
  for (unsigned seed = 0; seed < 20; ++seed) {
    machine::Setting setting{.seed = seed, .fault = fault};
    setting.kv = {pipeline.full(0), pipeline.empty(0), stages};
    const Outcome outcome = run.run(0, setting);
    const std::string error =
        outcome.error.empty() && deterministic ? run.broken_order(0, outcome) : outcome.error;
    EXPECT_TRUE(std::any_of(complaints.begin(), complaints.end(),
                            [&](const std::string& c) { return error.starts_with(c); }))
        << "said '" << error << "', seed " << seed;
  }
}

void expect_found_in_loads(Fault fault, const std::vector<std::string>& complaints) {
  constexpr int kStages = kBackwardTable[2].config.stages;
  SCOPED_TRACE("pipeline of Q");
  expect_found([](auto at) { return at.q_pipeline(); }, kStages, fault, complaints);
  SCOPED_TRACE("pipeline of dO");
  expect_found([](auto at) { return at.d_o_pipeline(); }, kStages, fault, complaints);
}

void expect_found_in_ds(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of dS");
  expect_found([](auto at) { return at.ds_pipeline(); }, kBackwardTable[2].config.ds_stages, fault,
               complaints);
}

TEST(BackwardProtocol, too_few_bytes_are_found) {
  // The statistics come beside the tile, so half of the bytes is no number of whole copies.
  expect_found_in_loads(Fault::kTooFewBytes, {machine::kUnfilled, "deadlock"});
}
TEST(BackwardProtocol, tiles_multiplied_before_they_have_come_are_found) {
  expect_found_in_loads(Fault::kConsumerPhase, {machine::kUnfilled, "deadlock"});
}
TEST(BackwardProtocol, dS_multiplied_before_it_has_come_is_found) {
  expect_found_in_ds(Fault::kConsumerPhase,
                     {machine::kUnfilled, machine::kUntold, "deadlock", "barrier"});
}
TEST(BackwardProtocol, dS_written_into_a_stage_in_use_is_found) {
  expect_found_in_ds(Fault::kProducerPhase, {"deadlock", machine::kOverRead});
}
TEST(BackwardProtocol, dS_released_by_three_of_four_warps_is_found) {
  expect_found_in_ds(Fault::kOneArrivalTooFew, {machine::kOverRead});
}
TEST(BackwardProtocol, dS_never_released_is_a_deadlock) {
  expect_found_in_ds(Fault::kOneArrivalTooMany, {"deadlock"});
}

TEST(BackwardProtocol, Q_and_dO_never_released_are_a_deadlock) {
  expect_found_in_loads(Fault::kOneArrivalTooMany, {"deadlock"});
}
// Where dK and dV are split, their warpgroups release stages themselves, with two stages as early
// as they can.
TEST(BackwardProtocol, Q_and_dO_released_before_the_last_warp_of_a_warpgroup_are_found) {
  constexpr int kRow = int(kBackwardTable.size()) - 1, kStages = kBackwardTable[kRow].config.stages;
  static_assert(kBackwardTable[kRow].config.splits_dkv());
  const std::vector<std::string> complaints = {machine::kOverRead, machine::kUnfilled, "barrier",
                                               "deadlock"};
  expect_found<kRow>([](auto at) { return at.q_pipeline(); }, kStages, Fault::kOneArrivalTooFew,
                     complaints);
  expect_found<kRow>([](auto at) { return at.d_o_pipeline(); }, kStages, Fault::kOneArrivalTooFew,
                     complaints);
}

void expect_found_in_semaphore(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of the semaphore");
  expect_found([](auto at) { return at.semaphore_pipeline(); }, kSemaphoreDepth, fault, complaints,
               true);
}
void expect_found_in_additions(Fault fault, const std::vector<std::string>& complaints) {
  SCOPED_TRACE("pipeline of additions");
  expect_found([](auto at) { return at.added_pipeline(); }, kSemaphoreDepth, fault, complaints,
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
