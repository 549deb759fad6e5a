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
#include "engine/hopper/tables/dense_backward_table.h"
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

// Of a pair either CTA may be far behind.
const std::vector<machine::Pace>& paces(bool pairs) {
  static const std::vector<machine::Pace> of_one(std::begin(machine::kManyPaces),
                                                 std::end(machine::kManyPaces));
  static const std::vector<machine::Pace> of_two = [] {
    constexpr int kWarps = 16;
    std::vector<machine::Pace> all = of_one;
    all.push_back({.name = "slow first CTA", .weight = machine::slow<0, kWarps - 1>});
    all.push_back({.name = "slow second CTA", .weight = machine::slow<kWarps, 2 * kWarps - 1>});
    return all;
  }();
  return pairs ? of_two : of_one;
}

template <BackwardConfig C>
void all_work_is_done_once(const BackwardRun<C>& run) {
  for (const machine::Pace& pace : paces(C.pairs())) {
    for (unsigned seed = 0; seed < num_seeds(); ++seed) {
      const auto number = unsigned(&pace - paces(C.pairs()).data());
      const int tile = int((seed * 7 + number) * C.ctas() % unsigned(std::max(run.tiles(), 1)));
      SCOPED_TRACE(std::string(pace.name) + ", seed " + std::to_string(seed) + ", tile " +
                   std::to_string(tile));
      run.expect_all_work_done(tile, run.run(tile, {.seed = seed, .pace = pace}));
      if (testing::Test::HasFailure()) return;
    }
  }
}
template <BackwardConfig C>
void all_work_is_done_once(std::span<const Shape> shapes, bool deterministic = false) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(std::to_string(shape.seqlen_q) + "x" + std::to_string(shape.seqlen_k));
    all_work_is_done_once(BackwardRun<C>(shape, deterministic));
    if (testing::Test::HasFailure()) return;
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
  constexpr BackwardConfig kPair =
      kDropoutBackwardTable[4].config.with(Element::kBf16, Variant::kGeneral);
  static_assert(kDense.signs_p() && kGeneral.signs_p() && kKeepsP.keeps_p());
  static_assert(kCapped.pairs() && kPair.pairs());
  all_work_is_done_once<kDense>(std::span(kShapes));
  all_work_is_done_once<kGeneral>(std::span(kVarlen));
  all_work_is_done_once<kKeepsP>(std::span(kWindows));
  all_work_is_done_once<kDense.deterministic()>(std::span(kShapes).first(3), true);
  all_work_is_done_once<kCapped>(std::span(kVarlen));
  all_work_is_done_once<kPair>(std::span(kVarlen));
  all_work_is_done_once<kPair.deterministic()>(std::span(kWindows).first(2), true);
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
  for_every_row<Variant::kDense>([]<BackwardConfig C>() {
    constexpr int kHeads = 230 / C.ctas();
    constexpr Shape kSplit[] = {
        {.seqlen_q = 300,
         .seqlen_k = 500,
         .heads = 14,
         .kv_heads = 2,
         .batches = 2,
         .mask = kCausal},
        {.seqlen_q = 60,
         .seqlen_k = 60,
         .heads = 8 * kHeads,
         .kv_heads = kHeads,
         .batches = 2,
         .mask = kCausal},
    };
    EXPECT_EQ(BackwardRun<C>(kSplit[0]).step_splits(), 7);
    EXPECT_EQ(BackwardRun<C>(kSplit[1]).step_splits(), 4);
    all_work_is_done_once<C>(std::span(kSplit));
  });
}

// On the first number of SMs that leaves a few.
TEST(BackwardProtocol, a_last_wave_of_few_key_blocks_is_split_and_adds_up_dk_and_dv_once) {
  for_every_row<Variant::kDense>([]<BackwardConfig C>() {
    for (const int group : {1, 2}) {
      const Shape shape{.seqlen_q = 30 * C.block_m - 7,
                        .seqlen_k = 600,
                        .heads = 3 * group,
                        .kv_heads = 3,
                        .batches = 2};
      int sms = 4;
      while (BackwardRun<C>(shape, MainLaunch::kAll, sms).last_wave().splits == 0) {
        ASSERT_LT(++sms, 16);
      }
      const BackwardRun<C> others(shape, MainLaunch::kAll, sms),
          last(shape, MainLaunch::kLastWave, sms);
      EXPECT_EQ(others.step_splits(), 1);
      EXPECT_EQ(last.step_splits(), others.last_wave().splits);
      EXPECT_EQ(last.tiles() % last.step_splits(), 0);
      all_work_is_done_once(others);
      all_work_is_done_once(last);
    }
  });
}

TEST(BackwardProtocol, few_key_blocks_are_split_and_add_up_dk_and_dv_once) {
  for_every_row<Variant::kDense>([]<BackwardConfig C>() {
    for (const MaskRuleOf<int>& mask : {MaskRuleOf<int>{}, kCausal}) {
      const Shape shape{.seqlen_q = 30 * C.block_m - 7,
                        .seqlen_k = 30 * C.block_m - 100,
                        .heads = 2,
                        .kv_heads = 2,
                        .batches = 1,
                        .mask = mask};
      const BackwardRun<C> split(shape, MainLaunch::kAll, 132);
      EXPECT_GT(split.step_splits(), 1);
      all_work_is_done_once(split);
    }
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

// Calls that no plan gives them, too: pairs under a causal mask and with an odd number of key
// blocks, persistent CTAs with long key blocks.
TEST(BackwardProtocol, kernels_for_some_dense_calls_do_all_work_once_in_any_order) {
  [&]<int... Row>(std::integer_sequence<int, Row...>) {
    const auto check = [&]<BackwardConfig C>() {
      static_assert(C.persistent || (C.pairs() && !C.splits_dkv()));
      // Every key block of a persistent CTA has a step.
      all_work_is_done_once<C>(std::span(kShapes).first(C.persistent ? 4 : std::size(kShapes)));
      all_work_is_done_once<C.deterministic()>(std::span(kShapes).first(3), true);
    };
    (check.template operator()<kDenseBackwardTable[Row].config>(), ...);
  }
  (std::make_integer_sequence<int, int(kDenseBackwardTable.size())>());
}

// P first lies where dS will: each warp's in the bytes of its own dS, for warps do not wait for
// each other between the two (Buffer::strips).
TEST(BackwardProtocol, of_a_pair_P_of_a_warp_lies_where_its_dS_will) {
  constexpr BackwardConfig kConfig = kBackwardTable.back().config;
  static_assert(kConfig.pairs());
  constexpr tile::TileLayout kDs = kConfig.ds_tile();
  constexpr int kChunk = tile::kChunkBytes, kSteps = kConfig.block_m / kRowsPerWarp;
  std::set<uint32_t> all;
  for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
    std::set<uint32_t> of_p, of_ds;
    for (int thread = warp * kWarpSize; thread < (warp + 1) * kWarpSize; ++thread) {
      threadIdx.x = unsigned(thread);
      const auto [query, key] = tile::stored_place_transposed(thread);
      for (int step = 0; step < kSteps; ++step) {
        of_p.insert(ScoreTile<kConfig>::packed_place(0, step));
        of_ds.insert(uint32_t(kDs.chunk_offset(query + step * kRowsPerWarp, key)));
      }
    }
    EXPECT_EQ(of_p, of_ds) << "warp " << warp;
    EXPECT_EQ(of_p.size(), size_t(kWarpSize * kSteps));
    for (const uint32_t chunk : of_p) {
      EXPECT_EQ(chunk % kChunk, 0u);
      const uint32_t strip = chunk % 128 / (128 / kWarpsPerWarpgroup);
      const uint32_t row = chunk / 128;
      EXPECT_EQ(strip ^ (row % 8 / 2), uint32_t(warp));  // as swizzled; of lane 0's rows as it is
    }
    all.merge(of_p);
  }
  EXPECT_EQ(all.size() * kChunk, size_t(kDs.bytes()));
}

constexpr BackwardConfig kOne = kBackwardTable[2].config, kPair = kBackwardTable.back().config,
                         kSplit = kBackwardTable[kBackwardTable.size() - 2].config,
                         kNarrowPair = kDenseBackwardTable.back().config,
                         kPersistent = kDenseBackwardTable.front().config;
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

// A protocol broken on purpose is found out in every order, with one of the complaints.
template <BackwardConfig C>
void expect_found(auto pipeline_of, Fault fault, const std::vector<std::string>& complaints,
                  bool deterministic = false) {
  SCOPED_TRACE(std::to_string(C.head_dim) + (C.pairs() ? " columns, pairs" : " columns"));
  const BackwardRun<C> run(kShapes[0], deterministic);
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
  expect_found_in_every_kernel([](auto at) { return at.q_pipeline(); }, fault, complaints);
  SCOPED_TRACE("pipeline of dO");
  expect_found_in_every_kernel([](auto at) { return at.d_o_pipeline(); }, fault, complaints);
}

TEST(BackwardProtocol, of_a_persistent_CTA_another_key_block_s_tiles_are_found) {
  const std::vector<std::string> complaints = {machine::kUnfilled, machine::kOverRead, "deadlock",
                                               "barrier"};
  for (const Fault fault : {Fault::kConsumerPhase, Fault::kTooFewBytes}) {
    expect_found<kPersistent>([](auto at) { return at.k_pipeline(); }, fault, complaints);
    expect_found<kPersistent>([](auto at) { return at.v_pipeline(); }, fault, complaints);
    expect_found<kPersistent>([](auto at) { return at.q_pipeline(); }, fault, complaints);
    expect_found<kPersistent>([](auto at) { return at.d_o_pipeline(); }, fault, complaints);
  }
}

constexpr auto kDsPipeline = [](auto at) { return at.ds_pipeline(); };
constexpr auto kPPipeline = [](auto at) { return at.p_pipeline(); };
constexpr auto kPairPipeline = [](auto at) { return at.pair_pipeline(); };
constexpr auto kNoPipeline = [](auto) { return NoPipeline{}; };

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
  const auto expect_found_in = [&](auto pipeline_of) {
    expect_found<kSplit>(pipeline_of, Fault::kOneArrivalTooFew, complaints);
    expect_found<kPair>(pipeline_of, Fault::kOneArrivalTooFew, complaints);
  };
  expect_found_in([](auto at) { return at.q_pipeline(); });
  expect_found_in([](auto at) { return at.d_o_pipeline(); });
  const auto d_o = [](auto at) { return at.d_o_pipeline(); };
  expect_found<kNarrowPair>(d_o, Fault::kOneArrivalTooFew, complaints);
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
