// SPDX-License-Identifier: Apache-2.0
//
// The latent kernels as they stand, computed on the host (latent_run.h) beside double precision: in
// every form of a call, in many orders of their warps, and broken.
#include <gtest/gtest.h>
#include <malloc.h>

#include "latent_run.h"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

using machine::Fault;
using machine::Pace;
using test::LatentCase;

// One program runs kernels of rows of 656 bytes, the other those of 16-bit rows.
constexpr bool kOfBytesHere = FA3_MODEL_ROWS_OF_BYTES;

template <bool IsGroup128, Element E>
void add_kernels() {
  add_latent_kernel<LatentShape{16, 576, E, IsGroup128}>();
  add_latent_kernel<LatentShape{16, 512, E, IsGroup128}>();
  add_latent_kernel<LatentShape{32, 576, E, IsGroup128}>();
  add_latent_kernel<LatentShape{32, 512, E, IsGroup128}>();
  add_latent_kernel<LatentShape{64, 576, E, IsGroup128}>();
  add_latent_kernel<LatentShape{64, 512, E, IsGroup128}>();
}

class Latent : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // A CTA's model takes tens of megabytes, which the next one gets again.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    add_kernels<false, Element::kBf16>();
    add_kernels<false, Element::kFp16>();
    add_kernels<true, Element::kBf16>();
    machine::add_kernel(&combine_latent_kernel<kMostAtOnce>);
    machine::add_kernel(&combine_latent_kernel<kMostAtOnce / 2>);
  }
  // Orders that a test has chosen end with it.
  void TearDown() override { machine::launch_setting = before_; }

  // With this program's rows.
  static void expect_right(LatentCase c) {
    c.rows = kOfBytesHere ? FA3_MLA_ROWS_GROUP128 : FA3_MLA_ROWS_LATENT;
    if (kOfBytesHere) c.dtype = FA3_BFLOAT16, c.rope_apart = false, ++c.seed;
    // CTAs of 64 rows, whose loader multiplies by scales.
    int64_t tokens = c.sparse() ? 1 : c.tokens;
    for (const int32_t count : c.queries) tokens = std::max<int64_t>(tokens, count);
    c.rounded_keys = kOfBytesHere && tokens * c.heads > 32 && !c.batch_invariant;
    EXPECT_EQ(run_latent(c), "") << test::describe(c);
  }

 private:
  const machine::Setting before_ = machine::launch_setting;
};

TEST_F(Latent, keys_end_anywhere_in_a_block) {
  expect_right({.heads = 3, .keys = {1, 0, 63, 64, 65, 129}});
  expect_right({.dtype = FA3_FLOAT16, .dim = 512, .heads = 17, .keys = {0, 130, 64}});
}

TEST_F(Latent, pages_have_any_size) {
  for (const int64_t page_size : {1, 3, 53, 128}) {
    expect_right({.tokens = 2, .heads = 5, .page_size = page_size, .keys = {90, 7}});
  }
  expect_right({.heads = 8, .page_size = 48, .keys = {90, 40}, .one_page = true});
}

// In segments of one block a consumer that takes turns has nothing to do, and the ring goes round.
TEST_F(Latent, many_short_sequences_come_before_long_ones) {
  for (const int count : {1, 2, 3, 5, 8, 12}) {
    LatentCase c{.heads = 3, .num_splits = 1};
    c.keys.assign(3 * count, 1);
    c.keys.insert(c.keys.end(), 3, 200);
    expect_right(c);
  }
}

TEST_F(Latent, causal_rows_see_different_keys) {
  expect_right({.tokens = 7, .heads = 5, .keys = {70, 3, 0}, .causal = true});
  expect_right({.tokens = 5, .heads = 16, .keys = {66}, .causal = true});  // three CTAs a team
}

TEST_F(Latent, packed_queries_leave_rows_to_nobody) {
  expect_right({.heads = 6, .keys = {70, 9, 130}, .queries = {3, 0, 2}, .causal = true});
}

TEST_F(Latent, a_token_has_keys_of_its_own) {
  expect_right({.tokens = 2, .heads = 9, .page_size = 16, .keys = {0, 0}, .top = 100});
  expect_right({.heads = 20, .keys = {0, 0, 0}, .top = 65, .has_count = true, .sink = true});
  expect_right({.heads = 2, .keys = {0}, .top = 0});
}

TEST_F(Latent, parts_of_a_tile_are_combined) {
  LatentCase c{.tokens = 2, .heads = 7, .keys = {300, 0, 70}, .causal = true};
  for (const int splits : {0, 2, 7}) {
    c.num_splits = splits;
    c.batch_invariant = splits == 7;
    expect_right(c);
  }
  // A team for each part, chosen by the plan.
  expect_right({.heads = 3, .keys = {200}, .sink = true});
  expect_right({.heads = 20, .keys = {0}, .top = 300, .has_count = true});
}

// Rows, LSE and maximum, sinks, queries and rows in two tensors, outputs of 16 bits.
TEST_F(Latent, results_have_every_form) {
  expect_right({.keys = {90, 0}, .query_apart = true, .wide_output = false, .sink = true});
  expect_right({.heads = 33,
                .keys = {90, 0},
                .sink = true,
                .lse_with_sink = false,
                .infinite_empty_lse = true});
  if (!kOfBytesHere) {
    EXPECT_EQ(run_latent({.keys = {90}, .rope_apart = true, .spread = 30}), "");
  }
}

// P and Q are in fp16, by powers of two.
TEST_F(Latent, scales_have_any_size) {
  if (!kOfBytesHere) GTEST_SKIP() << "these calls are of rows of bytes";
  expect_right({.heads = 20, .keys = {70}, .scale = 1e-38});  // CTAs of 64 rows have zeros of it
  for (const int64_t heads : {3, 33}) {
    const LatentCase cases[] = {
        {.heads = heads, .keys = {130}, .scale = 1e-30},
        {.heads = heads, .keys = {130}, .scale = 1e30},
        {.heads = heads, .keys = {70}, .spread = 1e-30f},
        {.heads = heads, .keys = {70}, .spread = 1e30f},
        {.heads = heads, .keys = {70}, .zero_scales = true},
        {.heads = heads, .keys = {200}, .spread = 1e-9f, .scale_octaves = 24}};
    for (const LatentCase& c : cases) expect_right(c);
  }
}

// Two consumers: blocks in turn, of which the second may have none.
TEST_F(Latent, many_rows_have_every_form_of_a_call) {
  const LatentCase cases[] = {
      {.heads = 64, .keys = {1, 64}, .wide_output = false},
      {.dtype = FA3_FLOAT16, .dim = 512, .heads = 40, .keys = {65, 0, 250}, .wide_output = false},
      {.tokens = 2, .heads = 40, .keys = {0}, .top = 200, .has_count = true, .sink = true},
      {.tokens = 3, .heads = 20, .keys = {300, 70}, .queries = {3, 1}, .causal = true},
      {.heads = 65, .page_size = 3, .keys = {200}, .rope_apart = true, .num_splits = 2},
      {.dtype = FA3_FLOAT16, .dim = 512, .heads = 64, .keys = {65}, .num_splits = 7},
      {.heads = 33, .keys = {150}, .query_apart = true, .spread = 30},
      // Scores of later blocks outgrow what fp16 holds of P.
      {.dtype = FA3_FLOAT16, .heads = 40, .keys = {400}, .spread = 30}};
  for (const LatentCase& c : cases) expect_right(c);
}

// Two CTAs a team and parts of several blocks. A consumer that asks for more registers than the
// launch has hangs here.
TEST_F(Latent, long_parts_of_large_pages_come_to_an_end) {
  if (!kOfBytesHere) GTEST_SKIP() << "this call is of rows of bytes";
  const LatentCase c{.rows = FA3_MLA_ROWS_GROUP128,
                     .dim = 512,
                     .tokens = 4,
                     .page_size = 576,
                     .keys = {900, 0, 2},
                     .causal = true,
                     .num_splits = 7,
                     .rounded_keys = true,
                     .spread = 4};
  EXPECT_EQ(run_latent(c), "");
}

// ---- Orders ----

const Pace kOrders[] = {
    {.name = "often interrupted", .interruption = 0.5},
    {.name = "slow copies", .engines = 0.02},
    {.name = "slow loader", .weight = machine::slow<0, 3>},
    {.name = "slow consumer", .weight = machine::slow<4, 7>},
    {.name = "one slow loading warp", .weight = machine::slow<2, 2>},
    {.name = "one slow consuming warp", .weight = machine::slow<5, 5>},
};
// Of kernels with two consumers.
const Pace kOrdersOfTwo[] = {
    {.name = "often interrupted", .interruption = 0.5},
    {.name = "slow loader", .weight = machine::slow<0, 3>},
    {.name = "slow first consumer", .weight = machine::slow<4, 7>},
    {.name = "slow second consumer", .weight = machine::slow<8, 11>},
    {.name = "one slow warp of the first consumer", .weight = machine::slow<6, 6>},
    {.name = "one slow warp of the second consumer", .weight = machine::slow<9, 9>},
};

// Every order, or every second one.
template <size_t Count, class Action>
void in_orders(const Pace (&orders)[Count], const Action& action) {
  for (size_t i = 0; i < Count; i += machine::by_effort(2, 1, 1)) {
    SCOPED_TRACE(orders[i].name);
    action(i, orders[i]);
  }
}

// Several tiles a CTA, parts, and an empty one; or more blocks than the ring holds. Of the two,
// each order takes one, or both.
TEST_F(Latent, any_order_of_warps_is_right) {
  const LatentCase cases[] = {
      {.heads = 4, .keys = {200, 0, 64}, .num_splits = 2},
      {.tokens = 3, .heads = 8, .keys = {270}, .causal = true, .num_splits = 1}};
  in_orders(kOfBytesHere ? kOrdersOfTwo : kOrders, [&](size_t i, const Pace& pace) {
    machine::launch_setting.pace = pace;
    expect_right(cases[i / 2 % 2]);
    if (machine::by_effort(0, 0, 1) > 0) expect_right(cases[1 - i / 2 % 2]);
  });
}

// Tiles of one to seven blocks, two or three a CTA.
TEST_F(Latent, any_order_of_two_consumers_is_right) {
  const LatentCase c{.heads = 40, .keys = {30, 400, 100, 200, 60, 260, 10}, .num_splits = 1};
  in_orders(kOrdersOfTwo, [&](size_t, const Pace& pace) {
    machine::launch_setting.pace = pace;
    expect_right(c);
  });
}

// ---- Broken protocols ----

// Every order must be found out with one of these complaints.
template <LatentShape C>
void expect_found_in(Fault fault, const std::vector<std::string>& complaints, int barrier = 0) {
  constexpr int32_t kKeys = C.is_wide() ? 400 : C.is_group128 ? 700 : 300;
  const LatentCase shape{.rows = C.is_group128 ? FA3_MLA_ROWS_GROUP128 : FA3_MLA_ROWS_LATENT,
                         .heads = C.rows,
                         .keys = {kKeys},  // stages that are filled three times
                         .num_splits = 1};
  const auto find = [&](size_t, const Pace& pace) {
    machine::launch_setting = {
        .pace = pace, .fault = fault, .kv = stage_barriers<C>(), .barrier = barrier};
    const std::string said = run_latent(shape);
    const auto fits = [&](const std::string& c) { return said.starts_with(c); };
    EXPECT_TRUE(std::ranges::any_of(complaints, fits)) << "said: '" << said << "'";
  };
  in_orders(C.consumers() == 2 ? kOrdersOfTwo : kOrders, find);
}
enum Kind { kOf16Bits, kOfBytes, kOfTwoConsumers };  // the last: of 64 rows, in both programs
template <Kind K>
void expect_found(Fault fault, const std::vector<std::string>& complaints, int barrier = 0) {
  constexpr bool kIsWide = K == kOfTwoConsumers;
  if (!kIsWide && kOfBytesHere != (K == kOfBytes)) return;
  SCOPED_TRACE(K);
  constexpr LatentShape kShape{kIsWide ? 64 : 16, 576, Element::kBf16, kOfBytesHere};
  expect_found_in<kShape>(fault, complaints, barrier);
}
class BrokenLatent : public Latent {};

const std::string kPhases = "phases alias", kBarrier = "barrier", kDeadlock = "deadlock";

TEST_F(BrokenLatent, a_stage_is_released_before_it_was_read) {
  expect_found<kOf16Bits>(Fault::kReleaseBeforeRead, {machine::kOverRead, kPhases, kDeadlock});
  // The first: raw rows on their way to their place in the ring.
  expect_found<kOfTwoConsumers>(Fault::kReleaseBeforeRead,
                                {machine::kUnfilled, machine::kOverRead, kPhases, kDeadlock});
  expect_found<kOfBytes>(Fault::kReleaseBeforeRead, {machine::kOverRead, kPhases, kDeadlock});
}
TEST_F(BrokenLatent, a_stage_is_empty_before_the_last_warp_released_it) {
  const std::vector<std::string> said{machine::kOverRead, machine::kUntold, machine::kUnfilled,
                                      kBarrier, kDeadlock};
  expect_found<kOf16Bits>(Fault::kOneArrivalTooFew, said);
  expect_found<kOfTwoConsumers>(Fault::kOneArrivalTooFew, said);
  expect_found<kOfBytes>(Fault::kOneArrivalTooFew, said);
}
TEST_F(BrokenLatent, one_release_is_forgotten) {
  expect_found<kOf16Bits>(Fault::kLostRelease, {kDeadlock});
  expect_found<kOfBytes>(Fault::kLostRelease, {kDeadlock});
  expect_found<kOfTwoConsumers>(Fault::kLostRelease, {kDeadlock});
}
TEST_F(BrokenLatent, a_stage_is_full_before_the_last_copies) {
  const std::vector<std::string> said{machine::kUnfilled, machine::kUntold, kBarrier, kPhases,
                                      machine::kOverRead};
  expect_found<kOf16Bits>(Fault::kOneCopierTooFew, said);
  expect_found<kOfTwoConsumers>(Fault::kOneCopierTooFew, said);
  expect_found<kOfBytes>(Fault::kOneCopierTooFew, said);
}
TEST_F(BrokenLatent, the_loader_waits_for_the_other_phase) {
  expect_found<kOf16Bits>(Fault::kProducerPhase, {kDeadlock});
  expect_found<kOfTwoConsumers>(Fault::kProducerPhase, {kDeadlock});
  expect_found<kOfBytes>(Fault::kProducerPhase, {kDeadlock});
}
TEST_F(BrokenLatent, the_consumer_waits_for_the_other_phase) {
  const std::vector<std::string> said{machine::kUnfilled, machine::kUntold, kDeadlock};
  expect_found<kOf16Bits>(Fault::kConsumerPhase, said);
  expect_found<kOfTwoConsumers>(Fault::kConsumerPhase, said);
  expect_found<kOfBytes>(Fault::kConsumerPhase, said);
}
TEST_F(BrokenLatent, products_read_without_a_fence) {
  expect_found<kOf16Bits>(Fault::kNoFence, {"no fence.proxy.async"});
  expect_found<kOfTwoConsumers>(Fault::kNoFence, {"no fence.proxy.async"});
  expect_found<kOfBytes>(Fault::kNoFence, {"no fence.proxy.async"});
}
TEST_F(BrokenLatent, a_lane_tells_of_numbers_before_others_have_stored_theirs) {
  if (!kOfBytesHere) GTEST_SKIP() << "copies by threads are told of by each thread";
  expect_found<kOfTwoConsumers>(Fault::kNoSyncwarp,
                                {machine::kUntold, machine::kUnfenced, machine::kUnfilled});
}
TEST_F(BrokenLatent, a_lane_releases_what_others_still_read) {
  expect_found<kOfBytes>(Fault::kNoSyncwarp, {machine::kOverRead});
}
TEST_F(BrokenLatent, queries_are_read_before_they_arrive) {
  expect_found<kOf16Bits>(Fault::kNoCopyWait, {machine::kUnfilled});
}
TEST_F(BrokenLatent, rows_are_converted_before_they_arrive) {
  if (!kOfBytesHere) GTEST_SKIP() << "these loaders convert nothing";
  expect_found<kOfTwoConsumers>(Fault::kNoCopyWait, {machine::kUnfilled});
}
TEST_F(BrokenLatent, consuming_warps_do_not_meet) {
  const std::vector<std::string> said{machine::kUnfilled, machine::kUntold};
  expect_found<kOf16Bits>(Fault::kNoNamedBarrier, said, int(NamedBarrier::kRows));
  expect_found<kOfBytes>(Fault::kNoNamedBarrier, said, int(NamedBarrier::kRows));
  expect_found<kOfBytes>(Fault::kNoNamedBarrier, said, int(NamedBarrier::kRows) + 1);
}
TEST_F(BrokenLatent, consumers_of_bytes_do_not_meet) {
  expect_found<kOfBytes>(Fault::kNoNamedBarrier,
                         {machine::kUnfilled, machine::kUntold, machine::kOverRead},
                         int(NamedBarrier::kHelpers));
}
TEST_F(BrokenLatent, two_consumers_do_not_meet) {
  const std::vector<std::string> said{machine::kUnfilled, machine::kUntold, machine::kOverRead,
                                      machine::kUnfenced, kDeadlock};
  for (const int barrier : {int(NamedBarrier::kPingPong), int(NamedBarrier::kPingPong) + 1,
                            int(NamedBarrier::kRows), int(NamedBarrier::kHelpers)}) {
    SCOPED_TRACE(barrier);
    expect_found<kOfTwoConsumers>(Fault::kNoNamedBarrier, said, barrier);
  }
}

}  // namespace
}  // namespace fa3::hopper
