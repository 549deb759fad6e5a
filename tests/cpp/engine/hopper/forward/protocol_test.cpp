// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the forward kernels, run as it stands in the sources on a machine that
// schedules at random (machine/machine.h): who may write and read shared memory when, and that
// every block is multiplied once by each warp that sees it. Next: broken_protocol_test.cpp.
#include <span>

#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/dropout_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"
#include "forward/forward_run.h"
#include "launch/table_rows.h"
#include "many_orders.h"
#include "protocol_paces.h"
#include "protocol_shapes.h"

namespace fa3::hopper {
namespace {

// One of the warps that dequantize keys, copy them, or transpose values, too.
std::vector<Pace> paces_of(const ForwardConfig& c) {
  std::vector<Pace> paces(std::begin(kPaces), std::end(kPaces));
  if (c.dequantizes() || c.may_use_cp_async() || c.transposes_v) {
    paces.push_back({.name = "slow helper", .weight = slow<2, 2>});
  }
  return paces;
}

unsigned num_seeds() {
  return machine::by_effort(1, 4, 60);
}

template <class Number>
class Protocol : public testing::Test {};
TYPED_TEST_SUITE(Protocol, RowsOf<kForwardTable>);

template <class Number>
class E4m3Protocol : public testing::Test {};
TYPED_TEST_SUITE(E4m3Protocol, RowsOf<kE4m3Table>);

template <class Number>
class CacheProtocol : public testing::Test {};
TYPED_TEST_SUITE(CacheProtocol, RowsOf<kCacheTable>);

template <class Number>
class StreamKProtocol : public testing::Test {};
TYPED_TEST_SUITE(StreamKProtocol, RowsOf<kStreamKTable>);

// In quick runs each shape takes every other pace, and the next shape those between.
void expect_all_work_done(const KernelOnTrial& kernel, std::span<const Shape> shapes,
                          bool heads_in_work = false) {
  const std::vector<Pace> paces = paces_of(kernel.config);
  const size_t step = machine::by_effort(2, 1, 1);
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
  expect_all_work_done(kernel_on_trial<kMaskTable[2].config>(), kListed);
}

TEST(MaskProtocol, listed_blocks_of_sequences_of_any_length_are_multiplied_once) {
  constexpr ForwardConfig kNarrow = kMaskTable[0].config, kWide = kMaskTable[1].config,
                          kFew = kMaskTable[2].config;
  expect_all_work_done(kernel_on_trial<kFew.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
  expect_all_work_done(kernel_on_trial<kNarrow.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
  expect_all_work_done(kernel_on_trial<kWide.with(Element::kBf16, Variant::kGeneral)>(), kRagged);
}

}  // namespace
}  // namespace fa3::hopper
