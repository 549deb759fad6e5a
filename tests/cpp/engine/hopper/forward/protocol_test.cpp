// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the forward kernels, run as it stands in the sources on a machine that
// schedules at random (machine/machine.h): who may write and read shared memory when, and that
// every block is multiplied once by each warp that sees it. Next: broken_protocol_test.cpp.
#include <span>

#include "engine/hopper/catalogue.h"
#include "forward/forward_run.h"
#include "launch/table_rows.h"
#include "many_orders.h"
#include "protocol_paces.h"
#include "protocol_shapes.h"

namespace fa3::hopper {
namespace {

// One of the warps that dequantize keys, copy them, or transpose values, too.
std::vector<Pace> paces_of(const Kernel& c) {
  std::vector<Pace> paces(std::begin(kPaces), std::end(kPaces));
  if (c.dequantizes() || c.may_use_cp_async() || c.transposes_v()) {
    paces.push_back({.name = "slow helper", .weight = slow<2, 2>});
  }
  return paces;
}

unsigned num_seeds() {
  return machine::by_effort(1, 4, 60);
}

template <class Number>
class Protocol : public testing::Test {};
constexpr auto kIsDense = [](const Row& row) {
  return is_plain(row) && row.kernel.scheduler() == SchedulerKind::kDense;
};
TYPED_TEST_SUITE(Protocol, RowsWith<kIsDense>);

template <class Number>
class GeneralProtocol : public testing::Test {};
constexpr auto kIsGeneral = [](const Row& row) { return is_plain(row) && row.kernel.general(); };
TYPED_TEST_SUITE(GeneralProtocol, RowsWith<kIsGeneral>);

template <class Number>
class E4m3Protocol : public testing::Test {};
constexpr auto kIsE4m3 = [](const Row& row) { return row.kernel.e4m3(); };
TYPED_TEST_SUITE(E4m3Protocol, RowsWith<kIsE4m3>);

template <class Number>
class CacheProtocol : public testing::Test {};
constexpr auto kIsCache = [](const Row& row) {
  return row.kernel.dequantizes() && row.kernel.general();
};
TYPED_TEST_SUITE(CacheProtocol, RowsWith<kIsCache>);

template <class Number>
class StreamKProtocol : public testing::Test {};
constexpr auto kIsStreamK = [](const Row& row) { return row.kernel.tiles == Tiles::kStreamK; };
TYPED_TEST_SUITE(StreamKProtocol, RowsWith<kIsStreamK>);

template <class Number>
constexpr Kernel kKernelOf = kForward[Number::kRow].kernel;

// In quick runs each shape takes every other pace, and the next shape those between.
void expect_all_work_done(const KernelOnTrial& kernel, std::span<const CallShape> shapes,
                          bool heads_in_work = false) {
  const std::vector<Pace> paces = paces_of(kernel.config);
  const size_t step = machine::by_effort(2, 1, 1);
  for (size_t i = 0; i < shapes.size(); ++i) {
    CallShape shape = shapes[i];
    const int32_t whole = kWholeBlocks - kWholeBlocks % kernel.config.shape.block_n;
    if (shape.seqlen_k == kWholeBlocks) shape.seqlen_k = whole;
    if (shape.used_k == kAllUsed) shape.used_k = &whole;
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
  expect_all_work_done(kernel_on_trial<kKernelOf<TypeParam>>(), kShapes);
}

// A softcap is no question for the protocol: of capped kernels one shape is enough.
template <Kernel C>
std::span<const CallShape> some_of(std::span<const CallShape> shapes) {
  return C.capped() ? shapes.first(1) : shapes;
}

TYPED_TEST(GeneralProtocol, windows_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  expect_all_work_done(kernel_on_trial<kKernel>(), some_of<kKernel>(kWindows));
}

TYPED_TEST(GeneralProtocol, sequences_of_any_length_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if (kKernel.capped()) GTEST_SKIP() << "the kernel without a softcap has these cases";
  expect_all_work_done(kernel_on_trial<kKernel>(), kRagged);
}

TYPED_TEST(GeneralProtocol, splits_of_tiles_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if constexpr (kKernel.can_split() && !kKernel.capped()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kCut);
  } else {
    GTEST_SKIP() << "this kernel leaves tiles whole, or the one without a softcap has these cases";
  }
}

TYPED_TEST(GeneralProtocol, keys_in_pages_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if (kKernel.capped()) GTEST_SKIP() << "the kernel without a softcap has these cases";
  expect_all_work_done(kernel_on_trial<kKernel>(), kPaged);
}

TYPED_TEST(GeneralProtocol, keys_that_threads_copy_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if constexpr (kKernel.may_use_cp_async()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), some_of<kKernel>(kGathered));
  } else {
    GTEST_SKIP() << "this kernel leaves pages to the copy engine";
  }
}

TYPED_TEST(StreamKProtocol, every_block_is_multiplied_and_every_split_counted_once) {
  expect_all_work_done(kernel_on_trial<kKernelOf<TypeParam>>(), kDecoded);
}

TYPED_TEST(StreamKProtocol, tiles_of_more_rows_may_be_whole) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    expect_all_work_done(kernel_on_trial<kKernel>(), kDecodedByMoreRows);
  } else {
    GTEST_SKIP() << "this kernel only computes splits";
  }
}

// And again on the workspace as a launch leaves it, as a captured one does.
TYPED_TEST(StreamKProtocol, the_cta_that_opens_a_tile_adds_every_split_once) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    const KernelOnTrial kernel = kernel_on_trial<kKernel>();
    for (const CallShape& shape : kOpened) {
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
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if constexpr (kKernel.combine() == CombineKind::kOpener) {
    const KernelOnTrial kernel = kernel_on_trial<kKernel>();
    for (const CallShape& shape : kOpened) {
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

// A tile's largest scores leave when its work tile is read for the last time.
TEST(MaxLogitProtocol, every_block_of_whole_and_split_tiles_is_multiplied_once) {
  constexpr Kernel kKernel = [] {
    Kernel kernel = row_named("d128/128 128x128 split").kernel;
    kernel.outputs.max_logit = true;
    return kernel;
  }();
  expect_all_work_done(kernel_on_trial<kKernel>(), kRagged);
  expect_all_work_done(kernel_on_trial<kKernel>(), kCut);
}

TYPED_TEST(E4m3Protocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kKernelOf<TypeParam>>(), kShapes);
}

TYPED_TEST(E4m3Protocol, tiles_wait_for_the_heads_that_the_kernel_before_still_makes) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  if (kKernel.transposes_v()) GTEST_SKIP() << "this kernel makes of values what it needs";
  expect_all_work_done(kernel_on_trial<kKernel>(), kShapes, true);
}

TYPED_TEST(E4m3Protocol, promotions_follow_each_other_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<kKernelOf<TypeParam>>(), kManyParts);
}

TYPED_TEST(CacheProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
  using Shapes = std::span<const CallShape>;
  if constexpr (kKernel.capped()) {
    expect_all_work_done(kernel_on_trial<kKernel>(), some_of<kKernel>(kWindows));
  } else {
    for (const Shapes shapes :
         {Shapes(kShapes), Shapes(kWindows), Shapes(kRagged), Shapes(kCut), Shapes(kPaged)}) {
      expect_all_work_done(kernel_on_trial<kKernel>(), shapes);
    }
  }
}

TYPED_TEST(E4m3Protocol, windows_and_other_lengths_are_multiplied_once_whoever_is_slow) {
  constexpr Kernel kKernel = kKernelOf<TypeParam>;
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
  constexpr Kernel kKernel = row_named("d256/256 128x64 dropped varlen capped").kernel;
  expect_all_work_done(kernel_on_trial<kKernel>(), kShapes);
  expect_all_work_done(kernel_on_trial<kKernel>(), kWindows);
  expect_all_work_done(kernel_on_trial<kKernel>(), kRagged);
}

// Their epilogue reads and writes global memory alone.
TEST(ContinuedProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<row_named("d128/128 192x80 continued").kernel>(), kShapes);
  constexpr Kernel kGeneral = row_named("d64/64 192x128 continued varlen").kernel;
  expect_all_work_done(kernel_on_trial<kGeneral>(), kWindows);
  expect_all_work_done(kernel_on_trial<kGeneral>(), kRagged);
}

TEST(MaskProtocol, every_listed_block_is_multiplied_once_whoever_is_slow) {
  expect_all_work_done(kernel_on_trial<row_named("d64/64 128x64 listed").kernel>(), kListed);
  expect_all_work_done(kernel_on_trial<row_named("d64/64 128x128 listed").kernel>(), kListed);
  expect_all_work_done(kernel_on_trial<row_named("d128/128 128x128 listed").kernel>(), kListed);
}

TEST(MaskProtocol, listed_blocks_of_sequences_of_any_length_are_multiplied_once) {
  constexpr Kernel kNarrow = row_named("d64/64 128x64 listed varlen").kernel,
                   kFew = row_named("d64/64 128x128 listed varlen").kernel,
                   kWide = row_named("d128/128 128x128 listed varlen").kernel;
  expect_all_work_done(kernel_on_trial<kFew>(), kRagged);
  expect_all_work_done(kernel_on_trial<kNarrow>(), kRagged);
  expect_all_work_done(kernel_on_trial<kWide>(), kRagged);
}

}  // namespace
}  // namespace fa3::hopper
