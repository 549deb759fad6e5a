// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the forward kernels, broken on purpose as in machine/fault.h: in every
// order the model of an SM finds it out. What they do as they stand: protocol_test.cpp.
#include <algorithm>
#include <set>
#include <span>
#include <string>

#include "engine/hopper/catalogue.h"
#include "forward/forward_run.h"
#include "protocol_paces.h"
#include "protocol_shapes.h"

namespace fa3::hopper {
namespace {

using machine::kOverRead;
using machine::kUnfenced;
using machine::kUnfilled;
using machine::kUntold;

const std::string kUnstored = "read from global memory before it was stored",
                  kUnflagged = "no flag between a store to global memory and its reader";

// Two consumers that take turns, two slabs a stage.
class BrokenProtocol : public testing::Test {
 protected:
  static constexpr Kernel kConfig{};

  // Every run must break off with one of these, and each of them must occur.
  template <Kernel C = kConfig>
  static void expect_found(Fault fault, const std::set<std::string>& complaints,
                           std::span<const CallShape> shapes = std::span(kShapes).first(2),
                           std::span<const Pace> paces = kPaces, int barrier = 0) {
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
  expect_found(Fault::kReleaseBeforeRead, {kOverRead, "overwritten while a copy arrives"});
}
TEST_F(BrokenProtocol, producer_in_the_wrong_phase) {
  expect_found(Fault::kProducerPhase, {"deadlock"});
}
TEST_F(BrokenProtocol, consumers_in_the_wrong_phase) {
  // Depending on who is first, they read too early or wait for ever.
  expect_found(Fault::kConsumerPhase, {kUnfilled, "deadlock"});
}
TEST_F(BrokenProtocol, one_arrival_too_few) {
  // The stage is loaded while the last warp reads, or before it looks at its barrier.
  const Pace one_slow_warp[] = {{.weight = slow<6, 6>}};
  expect_found(Fault::kOneArrivalTooFew, {kOverRead}, std::span(kShapes).first(2), one_slow_warp);
}
TEST_F(BrokenProtocol, one_arrival_too_many) {
  expect_found(Fault::kOneArrivalTooMany, {"deadlock"});
}
TEST_F(BrokenProtocol, a_lost_release) {
  expect_found(Fault::kLostRelease, {"deadlock"});
}
TEST_F(BrokenProtocol, full_after_half_of_the_bytes) {
  expect_found(Fault::kTooFewBytes, {kUnfilled});
}
TEST_F(BrokenProtocol, nobody_begins) {
  expect_found(Fault::kNoFirstTurn, {"deadlock"});
}
TEST_F(BrokenProtocol, a_ping_pong_turn_passed_twice) {
  expect_found(Fault::kTurnGivenTwice, {"named barrier 1: warp"});
}

// Faults of the serial loop, where K of a block is followed by its V.
class BrokenSerialLoop : public BrokenProtocol {
 protected:
  static constexpr Kernel kSerial = row_named("d64/64 128x64 listed").kernel;
  static_assert(!kSerial.shape.overlaps);
  static void expect_found(Fault fault, const std::set<std::string>& complaints) {
    BrokenProtocol::expect_found<kSerial>(fault, complaints, std::span(kListed).first(2));
  }
};

TEST_F(BrokenSerialLoop, released_before_it_was_read) {
  expect_found(Fault::kReleaseBeforeRead, {kOverRead});
}
TEST_F(BrokenSerialLoop, consumers_in_the_wrong_phase) {
  expect_found(Fault::kConsumerPhase, {kUnfilled, "deadlock", "phases alias"});
}
TEST_F(BrokenSerialLoop, a_lost_release) {
  expect_found(Fault::kLostRelease, {"deadlock"});
}

// Faults of keys that threads copy, in the kernel of few queries, which has one consumer.
class BrokenCpAsync : public BrokenProtocol {
 protected:
  static constexpr Kernel kGatherer =
      Kernel{.shape = {.block_m = 64, .block_n = 64, .ping_pong = false}, .tiles = Tiles::kSplit};
  static void expect_found(Fault fault, const std::set<std::string>& complaints) {
    BrokenProtocol::expect_found<kGatherer>(fault, complaints, kGathered);
  }
};

TEST_F(BrokenCpAsync, products_read_without_a_fence) {
  expect_found(Fault::kNoFence, {"no fence.proxy.async between the barrier of copies"});
}
TEST_F(BrokenCpAsync, full_before_the_last_warp_has_copied) {
  // A product reads what is on its way, or the barrier counts one arrival for the next phase.
  expect_found(Fault::kOneCopierTooFew, {kUnfilled});
}
TEST_F(BrokenCpAsync, released_before_it_was_read) {
  expect_found(Fault::kReleaseBeforeRead, {kOverRead});
}

// Faults where the CTA that opens a tile combines its splits.
class BrokenOpener : public BrokenProtocol {
 protected:
  static constexpr Kernel kOpener = row_named("d128/128 128x128 stream-K").kernel;
  static_assert(kOpener.combine() == CombineKind::kOpener);
  static void expect_found(Fault fault, const std::set<std::string>& complaints) {
    BrokenProtocol::expect_found<kOpener>(fault, complaints, kOpened);
  }
};

TEST_F(BrokenOpener, splits_are_added_without_a_wait) {
  expect_found(Fault::kNoFlagWait, {kUnstored, kUnflagged});
}
TEST_F(BrokenOpener, a_flag_tells_of_nothing) {
  expect_found(Fault::kFlagRaisedEarly, {kUnflagged});
}
// What only the next launch notices, where an opener waits before the others are done.
TEST_F(BrokenOpener, flags_are_not_taken_back) {
  const KernelOnTrial kernel = kernel_on_trial<kOpener>();
  for (const CallShape& shape : kOpened) {
    int found = 0;
    for (const Pace& pace : kPaces) {
      Trial trial{.shape = shape, .pace = pace, .fault = Fault::kFlagLeftRaised};
      EXPECT_EQ(ForwardRun(kernel, trial).error(), "") << pace.name;
      trial.replays = 1;
      const std::string error = ForwardRun(kernel, trial).error();
      found += error.starts_with(kUnstored) || error.starts_with(kUnflagged);
    }
    EXPECT_GT(found, 0) << shape.seqlen_q << " rows";
  }
}

// A kernel of bf16 queries over a quantized cache, whose warps do not meet for turns.
constexpr Kernel kFitter = row_named("cache d128/128 64x80 split").kernel;

TEST_F(BrokenProtocol, queries_changed_without_a_fence) {
  expect_found<kFitter>(Fault::kNoQueryFence, {kUnfenced});
}
TEST_F(BrokenProtocol, queries_read_before_all_are_changed) {
  expect_found<kFitter>(Fault::kNoQueryBarrier, {kUntold, kOverRead});
}

// A kernel that transposes values where they lie.
constexpr Kernel kTransposer = row_named("e4m3 d128/128 128x128 rows of V").kernel;

TEST_F(BrokenProtocol, values_transposed_without_a_fence) {
  expect_found<kTransposer>(Fault::kNoFence, {kUnfenced});
}
TEST_F(BrokenProtocol, values_read_before_all_warps_have_transposed_theirs) {
  static_assert(kTransposer.transposes_v());
  expect_found<kTransposer>(Fault::kNoNamedBarrier, {kUntold}, std::span(kShapes).first(2), kPaces,
                            int(NamedBarrier::kHelpers));
}

}  // namespace
}  // namespace fa3::hopper
