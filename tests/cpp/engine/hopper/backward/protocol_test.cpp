// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the backward's main kernel, run as it stands in the sources on a machine
// that schedules at random (machine/machine.h): every product of every query block is made once and
// of the right tiles, every part of dQ is added once, dK and dV are stored once. Next:
// broken_protocol_test.cpp.
#include <algorithm>
#include <span>

#include "backward/backward_run.h"
#include "engine/hopper/catalogue.h"
#include "launch/table_rows.h"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

constexpr MaskRuleOf<int> kFull, kCausal{.right = 0};

// Queries, keys, heads, heads of keys, sequences, mask.
constexpr CallShape kShapes[] = {
    {700, 300, 2, 2, 1, kFull}, {300, 500, 6, 2, 2, kCausal}, {900, 200, 3, 1, 1, kCausal},
    {1, 1, 1, 1, 1, kCausal},   {0, 150, 1, 1, 1, kFull},
};

// For the general kernels as well. The second has keys that no query sees, and blocks of them.
constexpr CallShape kWindows[] = {
    {700, 700, 3, 1, 1, {.left = 100, .right = 0}},
    {200, 900, 2, 2, 1, {.left = 130, .right = 70}},
    {900, 400, 2, 2, 2, {.left = 64}},
    {500, 600, 2, 2, 1, {.right = 0, .chunk = 150}},
    // Beside the diagonal: the last keys, or the first, are seen by nobody.
    {500, 600, 3, 1, 1, {.left = 250, .right = -200}},
    {600, 600, 2, 2, 1, {.left = -150}},
};

// Block masks: query blocks that end in their first half; key blocks that nobody sees.
constexpr CallShape kListed[] = {
    {900, 700, 4, 2, 2, kFull},
    {300, 1500, 6, 2, 1, kFull},
    {40, 60, 3, 3, 3, kFull},
};

// Varlen sequences, empty ones on either side, and rows that none owns.
constexpr int32_t kQueries[] = {0, 0, 300, 301, 301, 500, 513};
constexpr int32_t kKeys[] = {0, 40, 340, 340, 400, 700, 717};
constexpr int32_t kUsed[] = {0, 1, 300, 171};
constexpr CallShape kVarlen[] = {
    CallShape{300, 300, 3, 1, 6, kCausal}.with_packed(kQueries, kKeys),
    CallShape{200, 300, 2, 2, 4, {.left = 90}}.with_used(kUsed),
    CallShape{300, 300, 2, 2, 6, {.left = -20, .right = 150}}.with_packed(kQueries, kKeys),
};

// Either CTA of a pair may be far behind the other.
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
  const unsigned num_seeds = machine::by_effort(1, 3, 20);
  for (const machine::Pace& pace : paces(C.pairs())) {
    for (unsigned seed = 0; seed < num_seeds; ++seed) {
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
void all_work_is_done_once(std::span<const CallShape> shapes, bool deterministic = false) {
  for (const CallShape& shape : shapes) {
    SCOPED_TRACE(std::to_string(shape.seqlen_q) + "x" + std::to_string(shape.seqlen_k));
    all_work_is_done_once(BackwardRun<C>(shape, deterministic));
    if (testing::Test::HasFailure()) return;
  }
}

// Calls check.operator()<C>() for every row's kernel of a variant.
template <Variant V, class Check>
void for_every_row(const Check& check) {
  for_rows_of<kBackwardTiles>(
      [&]<BackwardConfig C>() { check.template operator()<C.with(Element::kBf16, V)>(); });
}

// With dropout P has a second form: in registers, and beyond 128 columns in shared memory.
TEST(BackwardProtocol, dropout_is_worked_through_once_in_any_order) {
  constexpr BackwardConfig kDense = backward_kernel_named("d64/64 128x128 dropped");
  constexpr BackwardConfig kCapped = backward_kernel_named("d256/256 64x64 dropped capped");
  constexpr BackwardConfig kKeepsP = backward_kernel_named("d128/128 64x128 dropped capped");
  constexpr BackwardConfig kGeneral = backward_kernel_named("d64/64 128x128 dropped varlen");
  constexpr BackwardConfig kPair = backward_kernel_named("d256/256 64x64 dropped varlen");
  static_assert(kDense.signs_p() && kGeneral.signs_p() && kKeepsP.keeps_p());
  static_assert(kCapped.pairs() && kPair.pairs());
  all_work_is_done_once<kDense>(kShapes);
  all_work_is_done_once<kGeneral>(kVarlen);
  all_work_is_done_once<kKeepsP>(kWindows);
  all_work_is_done_once<kDense.deterministic()>(std::span(kShapes).first(3), true);
  all_work_is_done_once<kCapped>(kVarlen);
  all_work_is_done_once<kPair>(kVarlen);
  all_work_is_done_once<kPair.deterministic()>(std::span(kWindows).first(2), true);
}

// Gradients of keys in float32 leave by threads.
TEST(BackwardProtocol, float32_gradients_are_stored_once_in_any_order) {
  constexpr BackwardConfig kDense = backward_kernel_named("d128/128 64x128 float32");
  constexpr BackwardConfig kGeneral = backward_kernel_named("d64/64 128x128 float32 varlen");
  static_assert(kDense.wide() && kGeneral.wide() && kGeneral.general());
  all_work_is_done_once<kDense>(kShapes);
  all_work_is_done_once<kDense.deterministic()>(std::span(kShapes).first(3), true);
  all_work_is_done_once<kGeneral>(std::span(kWindows).first(3));
  all_work_is_done_once<kGeneral>(kVarlen);
}

TEST(BackwardProtocol, block_masks_are_worked_through_once_in_any_order) {
  for_rows_of<kListedBackwardTiles>([]<BackwardConfig C>() {
    all_work_is_done_once<C>(kListed);
    all_work_is_done_once<C.deterministic()>(kListed, true);
    constexpr BackwardConfig kGeneral = C.with(Element::kBf16, Variant::kGeneral);
    all_work_is_done_once<kGeneral>(kVarlen);
    all_work_is_done_once<kGeneral.deterministic()>(kVarlen, true);
  });
}

TEST(BackwardProtocol, every_row_of_the_table_does_all_work_once_in_any_order) {
  for_every_row<Variant::kDense>([]<BackwardConfig C>() { all_work_is_done_once<C>(kShapes); });
}

TEST(BackwardProtocol, windows_are_worked_through_once_in_any_order) {
  for_every_row<Variant::kGeneral>([]<BackwardConfig C>() { all_work_is_done_once<C>(kWindows); });
}

TEST(BackwardProtocol, sequences_of_any_length_are_worked_through_once_in_any_order) {
  for_every_row<Variant::kGeneral>([]<BackwardConfig C>() { all_work_is_done_once<C>(kVarlen); });
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
    constexpr CallShape kSplit[] = {
        {300, 500, 14, 2, 2, kCausal},
        {60, 60, 8 * kHeads, kHeads, 2, kCausal},
    };
    EXPECT_EQ(BackwardRun<C>(kSplit[0]).step_splits(), 7);
    EXPECT_EQ(BackwardRun<C>(kSplit[1]).step_splits(), 4);
    all_work_is_done_once<C>(kSplit);
  });
}

TEST(BackwardProtocol, few_key_blocks_are_split_and_add_up_dk_and_dv_once) {
  for_every_row<Variant::kDense>([]<BackwardConfig C>() {
    for (const MaskRuleOf<int>& mask : {MaskRuleOf<int>{}, kCausal}) {
      const CallShape shape{30 * C.shape.block_m - 7, 30 * C.shape.block_m - 100, 2, 2, 1, mask};
      const BackwardRun<C> split(shape, MainLaunch::kMaySplit, 132);
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
    all_work_is_done_once<C.deterministic()>(kWindows, true);
    all_work_is_done_once<C.deterministic()>(kVarlen, true);
  });
  for_every_row<Variant::kCapped>([]<BackwardConfig C>() {
    all_work_is_done_once<C.deterministic()>(std::span(kVarlen).first(1), true);
  });
}

// Calls that no plan gives them, too: pairs under a causal mask and with an odd number of key
// blocks, persistent CTAs with long key blocks.
TEST(BackwardProtocol, kernels_for_some_dense_calls_do_all_work_once_in_any_order) {
  for_rows_of<kRowsForSomeDenseCalls>([]<BackwardConfig C>() {
    static_assert(C.persistent() || C.has_long_sums() || (C.pairs() && !C.splits_dkv()));
    // Every key block of a persistent CTA has a step.
    all_work_is_done_once<C>(std::span(kShapes).first(C.persistent() ? 4 : std::size(kShapes)));
    all_work_is_done_once<C.deterministic()>(std::span(kShapes).first(3), true);
  });
}

}  // namespace
}  // namespace fa3::hopper
