// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the forward kernels, run as it stands in the sources on a machine that
// schedules at random (machine/machine.h): who may write and read shared memory when, and that
// every block is multiplied once by each warp that sees it. Broken protocols must be found out.
#include <cstdlib>
#include <span>

#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/dropout_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"
#include "forward_run.h"
#include "protocol_shapes.h"

namespace fa3::hopper {
namespace {

constexpr double kSlow = 0.01;

double slow_producer(int warp) {
  return warp < kWarpsPerWarpgroup ? kSlow : 1;
}
double slow_consumers(int warp) {
  return warp < kWarpsPerWarpgroup ? 1 : kSlow;
}
template <int Warp>
double slow_warp(int warp) {
  return warp == Warp ? kSlow : 1;
}

const Pace kPaces[] = {
    {},
    {.name = "slow producer", .weight = slow_producer},
    {.name = "slow consumers", .weight = slow_consumers},
    {.name = "slow copies", .engines = 0.02},
    {.name = "one slow warp", .weight = slow_warp<6>},
    {.name = "another slow warp", .engines = 10, .weight = slow_warp<11>, .interruption = 0.5},
};

// One of the warps that dequantize keys, copy them, or transpose values, too.
std::vector<Pace> paces_of(const ForwardConfig& c) {
  std::vector<Pace> paces(std::begin(kPaces), std::end(kPaces));
  if (c.dequantizes() || c.may_use_cp_async() || c.transposes_v) {
    paces.push_back({.name = "slow helper", .weight = slow_warp<2>});
  }
  return paces;
}

unsigned num_seeds() {
  return std::getenv("FA3_TEST_FULL") ? 60 : std::getenv("FA3_TEST_QUICK") ? 1 : 4;
}

template <int Row>
struct RowNumber {
  static constexpr int kRow = Row;
};

template <class Number>
class Protocol : public testing::Test {};

template <class Sequence>
struct Rows;
template <int... Row>
struct Rows<std::integer_sequence<int, Row...>> {
  using Types = testing::Types<RowNumber<Row>...>;
};
using AllRows = Rows<std::make_integer_sequence<int, int(kForwardTable.size())>>::Types;
TYPED_TEST_SUITE(Protocol, AllRows);

template <class Number>
class E4m3Protocol : public testing::Test {};
using AllE4m3Rows = Rows<std::make_integer_sequence<int, int(kE4m3Table.size())>>::Types;
TYPED_TEST_SUITE(E4m3Protocol, AllE4m3Rows);

template <class Number>
class CacheProtocol : public testing::Test {};
using AllCacheRows = Rows<std::make_integer_sequence<int, int(kCacheTable.size())>>::Types;
TYPED_TEST_SUITE(CacheProtocol, AllCacheRows);

template <class Number>
class StreamKProtocol : public testing::Test {};
using AllStreamKRows = Rows<std::make_integer_sequence<int, int(kStreamKTable.size())>>::Types;
TYPED_TEST_SUITE(StreamKProtocol, AllStreamKRows);

// In quick runs each shape takes every other pace, and the next shape those between.
void expect_all_work_done(const KernelOnTrial& kernel, std::span<const Shape> shapes,
                          bool heads_in_work = false) {
  const std::vector<Pace> paces = paces_of(kernel.config);
  const size_t step = std::getenv("FA3_TEST_QUICK") ? 2 : 1;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    for (size_t p = i % step; p < paces.size(); p += step) {
      const Pace& pace = paces[p];
      for (unsigned seed = 0; seed < num_seeds(); ++seed) {
        ForwardRun run(
            kernel, {.shape = shape, .seed = seed, .pace = pace, .heads_in_work = heads_in_work});
        run.expect_all_work_done();
        ASSERT_FALSE(testing::Test::HasFatalFailure())
            << pace.name << ", " << shape.seqlen_q << "x" << shape.seqlen_k << ", seed " << seed;
      }
    }
  }
}

TYPED_TEST(Protocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kForwardTable[TypeParam::kRow].config>(), kShapes);
}

TYPED_TEST(Protocol, windows_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kTile = kForwardTable[TypeParam::kRow].config;
  expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kGeneral)>(), kWindows);
  expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kCapped)>(),
                       std::span(kWindows).first(1));
}

TYPED_TEST(Protocol, sequences_of_any_length_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kTile = kForwardTable[TypeParam::kRow].config;
  expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
}

TYPED_TEST(Protocol, splits_of_tiles_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kKernel =
      kForwardTable[TypeParam::kRow].config.with(Element::kBf16, Variant::kGeneral);
  if constexpr (kKernel.can_split()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kCut);
  } else {
    GTEST_SKIP() << "this kernel leaves tiles whole";
  }
}

TYPED_TEST(Protocol, keys_in_pages_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kTile = kForwardTable[TypeParam::kRow].config;
  expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kGeneral)>(), kPaged);
}

TYPED_TEST(Protocol, keys_that_threads_copy_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kTile = kForwardTable[TypeParam::kRow].config;
  constexpr ForwardConfig kKernel = kTile.with(Element::kBf16, Variant::kGeneral);
  if constexpr (kKernel.may_use_cp_async()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kGathered);
    expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kCapped)>(),
                         std::span(kGathered).first(1));
  } else {
    GTEST_SKIP() << "this kernel leaves pages to the copy engine";
  }
}

TYPED_TEST(StreamKProtocol, every_block_is_multiplied_and_every_split_counted_once) {
  expect_all_work_done(kernel_on_trial<kStreamKTable[TypeParam::kRow].config>(), kDecoded);
}

TYPED_TEST(StreamKProtocol, tiles_of_more_rows_may_be_whole) {
  constexpr ForwardConfig kKernel = kStreamKTable[TypeParam::kRow].config;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kDecodedByMoreRows);
  } else {
    GTEST_SKIP() << "this kernel only computes splits";
  }
}

// And again on the workspace as a launch leaves it, as a captured one does.
TYPED_TEST(StreamKProtocol, the_cta_that_opens_a_tile_adds_every_split_once) {
  constexpr ForwardConfig kKernel = kStreamKTable[TypeParam::kRow].config;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    const KernelOnTrial kernel = kernel_on_trial<kKernel>();
    for (const Shape& shape : kOpened) {
      for (const Pace& pace : paces_of(kKernel)) {
        for (unsigned seed = 0; seed < num_seeds(); ++seed) {
          ForwardRun run(kernel, {.shape = shape, .seed = seed, .pace = pace, .replays = 1});
          ASSERT_TRUE(run.opener_combines());
          run.expect_all_work_done();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << pace.name << ", " << shape.seqlen_q << " rows, seed " << seed;
        }
      }
    }
  } else {
    GTEST_SKIP() << "the last CTA combines";
  }
}

// Where one CTA alone has room at a time, those that are waited for have been there before.
TYPED_TEST(StreamKProtocol, the_cta_that_opens_a_tile_waits_for_none_that_starts_later) {
  constexpr ForwardConfig kKernel = kStreamKTable[TypeParam::kRow].config;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    const KernelOnTrial kernel = kernel_on_trial<kKernel>();
    for (const Shape& shape : kOpened) {
      Trial trial{.shape = shape};
      for (int cta = 0; cta < shape.split.ctas; ++cta) trial.order.push_back(cta);
      ForwardRun run(kernel, trial);
      run.expect_all_work_done();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << shape.seqlen_q << " rows";
      std::ranges::reverse(trial.order);
      EXPECT_TRUE(ForwardRun(kernel, trial).error().starts_with("deadlock"))
          << shape.seqlen_q << " rows";
    }
  } else {
    GTEST_SKIP() << "the last CTA combines";
  }
}

TYPED_TEST(E4m3Protocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kE4m3Table[TypeParam::kRow].config>(), kShapes);
}

TYPED_TEST(E4m3Protocol, tiles_wait_for_the_heads_that_the_kernel_before_still_makes) {
  constexpr ForwardConfig kKernel = kE4m3Table[TypeParam::kRow].config;
  if (kKernel.transposes_v) GTEST_SKIP() << "this kernel makes of values what it needs";
  expect_all_work_done(kernel_on_trial<kKernel>(), kShapes, true);
}

TYPED_TEST(E4m3Protocol, promotions_follow_each_other_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kE4m3Table[TypeParam::kRow].config>(), kManyParts);
}

TYPED_TEST(CacheProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kTile = kCacheTable[TypeParam::kRow].config;
  constexpr ForwardConfig kKernel = kTile.with(Element::kBf16, Variant::kGeneral);
  using Shapes = std::span<const Shape>;
  for (const Shapes shapes :
       {Shapes(kShapes), Shapes(kWindows), Shapes(kRagged), Shapes(kCut), Shapes(kPaged)}) {
    expect_all_work_done(kernel_on_trial<kKernel>(), shapes);
  }
  expect_all_work_done(kernel_on_trial<kTile.with(Element::kBf16, Variant::kCapped)>(),
                       std::span(kWindows).first(1));
}

TYPED_TEST(E4m3Protocol, windows_and_other_lengths_are_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kKernel = kE4m3Table[TypeParam::kRow].config;
  if constexpr (kKernel.general()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kWindows);
    expect_all_work_done(kernel_on_trial<kKernel>(), kRagged);
    expect_all_work_done(kernel_on_trial<kKernel>(), kPaged);
  } else {
    GTEST_SKIP() << "this kernel is for one length and at most a causal mask";
  }
}

// Blocks of keys begin where draws do.
TEST(DropoutProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kKernel = kDropoutTable.back().config;
  expect_all_work_done(kernel_on_trial<kKernel>(), kShapes);
  expect_all_work_done(kernel_on_trial<kKernel>(), kWindows);
  expect_all_work_done(kernel_on_trial<kKernel>(), kRagged);
}

// Their epilogue reads and writes global memory alone.
TEST(ContinuedProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kContinuedTable[1].config>(), kShapes);
  constexpr ForwardConfig kGeneral = kContinuedTable[2].config;
  expect_all_work_done(kernel_on_trial<kGeneral>(), kWindows);
  expect_all_work_done(kernel_on_trial<kGeneral>(), kRagged);
}

TEST(MaskProtocol, every_listed_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kMaskTable[0].config>(), kListed);
  expect_all_work_done(kernel_on_trial<kMaskTable[1].config>(), kListed);
}

TEST(MaskProtocol, listed_blocks_of_sequences_of_any_length_are_multiplied_once) {
  constexpr ForwardConfig kNarrow = kMaskTable[0].config, kWide = kMaskTable[1].config;
  expect_all_work_done(kernel_on_trial<kNarrow.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
  expect_all_work_done(kernel_on_trial<kWide.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
}

// Two consumers that take turns, two slabs a stage; protocols broken as in machine/fault.h.
class BrokenProtocol : public testing::Test {
 protected:
  static constexpr ForwardConfig kConfig{};

  // Every run must break off with one of these, and each of them must occur.
  template <ForwardConfig C = kConfig>
  static void expect_found(Fault fault, const std::set<std::string>& complaints,
                           const std::vector<Pace>& paces = {std::begin(kPaces), std::end(kPaces)},
                           std::span<const Shape> shapes = std::span(kShapes).first(2),
                           int barrier = 0) {
    const KernelOnTrial kernel = kernel_on_trial<C>();
    std::set<std::string> found;
    for (unsigned seed = 0; seed < 10; ++seed) {
      for (const Pace& pace : paces) {
        const std::string error =
            ForwardRun(kernel, {shapes[seed % shapes.size()], seed, pace, fault, barrier}).error();
        const auto complaint =
            std::find_if(complaints.begin(), complaints.end(),
                         [&](const std::string& c) { return error.starts_with(c); });
        ASSERT_NE(complaint, complaints.end())
            << pace.name << ", seed " << seed << ", said: '" << error << "'";
        found.insert(*complaint);
      }
    }
    EXPECT_EQ(found, complaints);
  }
};

TEST_F(BrokenProtocol, released_before_it_was_read) {
  expect_found(Fault::kReleaseBeforeRead,
               {"overwritten while it is read", "overwritten while a copy arrives"});
}
TEST_F(BrokenProtocol, producer_in_the_wrong_phase) {
  expect_found(Fault::kProducerPhase, {"deadlock"});
}
TEST_F(BrokenProtocol, consumers_in_the_wrong_phase) {
  // Depending on who is first, they read too early or wait for ever.
  expect_found(Fault::kConsumerPhase, {"read before it was filled", "deadlock"});
}
TEST_F(BrokenProtocol, one_arrival_too_few) {
  // The stage is loaded while the last warp reads, or before it looks at its barrier.
  expect_found(Fault::kOneArrivalTooFew, {"overwritten while it is read"},
               {{.weight = slow_warp<6>}});
}
TEST_F(BrokenProtocol, one_arrival_too_many) {
  expect_found(Fault::kOneArrivalTooMany, {"deadlock"});
}
TEST_F(BrokenProtocol, a_lost_release) {
  expect_found(Fault::kLostRelease, {"deadlock"});
}
TEST_F(BrokenProtocol, full_after_half_of_the_bytes) {
  expect_found(Fault::kTooFewBytes, {"read before it was filled"});
}
TEST_F(BrokenProtocol, nobody_begins) {
  expect_found(Fault::kNoFirstTurn, {"deadlock"});
}
TEST_F(BrokenProtocol, a_ping_pong_turn_passed_twice) {
  expect_found(Fault::kTurnGivenTwice, {"named barrier 1: warp"});
}

// The same of keys that threads copy: the kernel of few queries, which has one consumer.
class BrokenCpAsync : public BrokenProtocol {
 protected:
  static constexpr ForwardConfig kGatherer =
      ForwardConfig{.block_m = 64, .block_n = 64, .ping_pong = false, .may_split = true}.with(
          Element::kBf16, Variant::kGeneral);
  static void expect_found(Fault fault, const std::set<std::string>& complaints) {
    BrokenProtocol::expect_found<kGatherer>(fault, complaints,
                                            {std::begin(kPaces), std::end(kPaces)}, kGathered);
  }
};

TEST_F(BrokenCpAsync, products_read_without_a_fence) {
  expect_found(Fault::kNoFence, {"no fence.proxy.async between the barrier of copies"});
}
TEST_F(BrokenCpAsync, full_before_the_last_warp_has_copied) {
  // A product reads what is on its way, or the barrier counts one arrival for the next phase.
  expect_found(Fault::kOneCopierTooFew, {"read before it was filled"});
}
TEST_F(BrokenCpAsync, released_before_it_was_read) {
  expect_found(Fault::kReleaseBeforeRead, {"overwritten while it is read"});
}

// The same where the CTA that opens a tile combines its splits.
class BrokenOpener : public BrokenProtocol {
 protected:
  static constexpr ForwardConfig kOpener = kStreamKTable[6].config;
  static_assert(kOpener.combine() == CombineKind::kOpener);
  static void expect_found(Fault fault, const std::set<std::string>& complaints) {
    BrokenProtocol::expect_found<kOpener>(fault, complaints, {std::begin(kPaces), std::end(kPaces)},
                                          kOpened);
  }
};

TEST_F(BrokenOpener, splits_are_added_without_a_wait) {
  expect_found(Fault::kNoFlagWait, {"read from global memory before it was stored",
                                    "no flag between a store to global memory and its reader"});
}
TEST_F(BrokenOpener, a_flag_tells_of_nothing) {
  expect_found(Fault::kFlagRaisedEarly,
               {"no flag between a store to global memory and its reader"});
}
// What only the next launch notices, where an opener waits before the others are done.
TEST_F(BrokenOpener, flags_are_not_taken_back) {
  const KernelOnTrial kernel = kernel_on_trial<kOpener>();
  for (const Shape& shape : kOpened) {
    int found = 0;
    for (const Pace& pace : kPaces) {
      Trial trial{.shape = shape, .pace = pace, .fault = Fault::kFlagLeftRaised};
      EXPECT_EQ(ForwardRun(kernel, trial).error(), "") << pace.name;
      trial.replays = 1;
      const std::string error = ForwardRun(kernel, trial).error();
      found += error.starts_with("read from global memory before it was stored") ||
               error.starts_with("no flag between a store to global memory and its reader");
    }
    EXPECT_GT(found, 0) << shape.seqlen_q << " rows";
  }
}

// Of bf16 queries over a quantized cache, of a kernel whose warps do not meet for turns.
constexpr ForwardConfig kFitter = kCacheTable[3].config.with(Element::kBf16, Variant::kGeneral);

TEST_F(BrokenProtocol, queries_changed_without_a_fence) {
  expect_found<kFitter>(Fault::kNoQueryFence, {"no fence.proxy.async between the store of warp"});
}
// Of a kernel that transposes values where they lie.
constexpr ForwardConfig kTransposer = kE4m3Table[kE4m3Table.size() - 2].config;

TEST_F(BrokenProtocol, values_transposed_without_a_fence) {
  expect_found<kTransposer>(Fault::kNoFence, {"no fence.proxy.async between the store of warp"});
}
TEST_F(BrokenProtocol, values_read_before_all_warps_have_transposed_theirs) {
  static_assert(kTransposer.transposes_v);
  expect_found<kTransposer>(Fault::kNoNamedBarrier, {"no barrier between the store of warp"},
                            {std::begin(kPaces), std::end(kPaces)}, std::span(kShapes).first(2),
                            int(NamedBarrier::kHelpers));
}
TEST_F(BrokenProtocol, queries_read_before_all_are_changed) {
  expect_found<kFitter>(Fault::kNoQueryBarrier,
                        {"no barrier between the store of warp", "overwritten while it is read"});
}

}  // namespace
}  // namespace fa3::hopper
