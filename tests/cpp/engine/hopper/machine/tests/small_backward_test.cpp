// SPDX-License-Identifier: Apache-2.0
//
// The small backward in many random orders: right as it stands, and found out whichever rule it
// breaks.
#include "tests/small_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "many_orders.h"

namespace fa3::hopper {
namespace {

using namespace machine;  // the test's view of it
using small_backward::Break;
using small_backward::Smem;

class SmallBackward : public testing::Test {
 protected:
  SmallBackward() {
    const auto map = [](const void* tensor, int rows) {
      return machine::encoded({tensor, rows, Smem::kKv.row_bytes()});
    };
    t_ = {.q = map(&q_, 64),
          .d_o = map(&d_o_, 64),
          .k = map(&k_, 128),
          .v = map(&v_, 128),
          .dk = map(&dk_, 64),
          .lse = lse_,
          .delta = delta_,
          .dq = dq_};
  }

  std::function<void()> program(Break b = Break::kNothing) {
    return [this, b] { small_backward::kernel(t_, b); };
  }
  void expect_complaint(Break b, const std::set<std::string>& complaints) {
    expect_found(small_backward::kWarps, Smem::buffers(), program(b), complaints);
  }

  // What a math warp multiplies in one step: tensors (null: dS), rows, columns, sizes.
  using Step = std::tuple<const void*, int, const void*, int, int, int, int>;
  static Step step_of(const Product& p) {
    return {p.a.tensor, p.a.row, p.b.tensor, p.b.row, p.b.column, p.columns, p.depth};
  }
  std::vector<Step> steps_of(int warp) const {
    const int keys = (warp - 4) * 16, column = (warp / 4 - 1) * 32;
    std::vector<Step> steps;
    for (int step = 0; step < small_backward::kSteps; ++step) {
      const int queries = step * small_backward::kQueries;
      steps.push_back({&k_, keys, &q_, queries, 0, 64, 64});
      steps.push_back({&v_, keys, &d_o_, queries, 0, 64, 64});
      steps.push_back({nullptr, 0, &d_o_, queries, 0, 64, 64});
      steps.push_back({nullptr, 0, &k_, 0, column, 32, 128});
      steps.push_back({nullptr, 0, &q_, queries, 0, 64, 64});
    }
    return steps;
  }

  char q_ = 0, d_o_ = 0, k_ = 0, v_ = 0, dk_ = 0;  // stand for tensors
  float lse_[320], delta_[320], dq_[5 * 64 * 64];
  small_backward::Tensors t_;
};

TEST_F(SmallBackward, multiplies_and_adds_everything_once_in_any_order) {
  in_many_orders(small_backward::kWarps, Smem::buffers(), program(), [&](const Outcome& outcome) {
    ASSERT_EQ(outcome.error, "");
    for (int warp = 4; warp < small_backward::kWarps; ++warp) {
      std::vector<Step> steps;
      int dq_products = 0;
      for (const Product& p : outcome.products[size_t(warp)]) {
        steps.push_back(step_of(p));
        const bool dq = p.b.tensor == &k_ && p.a.tensor == nullptr;
        if (dq) {
          EXPECT_EQ(p.a.filling, dq_products / small_backward::kDsStages + 1);
          ++dq_products;
        }
      }
      ASSERT_EQ(steps, steps_of(warp)) << "warp " << warp;
    }
    std::vector<std::tuple<const void*, int, int, bool>> left, expected;
    for (const Departure& d : outcome.departures) left.push_back({d.to, d.row, d.filling, d.adds});
    for (int wg = 0; wg < small_backward::kMathWarpgroups; ++wg) {
      for (int step = 0; step < small_backward::kSteps; ++step) {
        expected.push_back({t_.dq_slice(step, wg), 0, step + 1, true});
      }
      expected.push_back({&dk_, wg * 64, 1, false});
    }
    std::sort(left.begin(), left.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(left, expected);
  });
}

TEST_F(SmallBackward, dS_without_a_fence) {
  expect_complaint(Break::kNoFence, {kUnfenced});
}
TEST_F(SmallBackward, dS_with_its_fence_after_the_barrier) {
  expect_complaint(Break::kFenceAfterBarrier, {kUnfenced});
}
TEST_F(SmallBackward, dS_without_a_barrier) {
  // Whoever multiplies first meets memory that is being stored to, or reads it under the store.
  expect_complaint(Break::kNoBarrier, {kUntold, kOverRead});
}
TEST_F(SmallBackward, dS_with_a_barrier_of_one_warpgroup) {
  expect_complaint(Break::kBarrierOfOneWarpgroup, {kUntold, kOverRead});
}
TEST_F(SmallBackward, dS_overwritten_before_the_dQ_product_is_over) {
  expect_complaint(Break::kOneDsStage, {kOverRead});
}
TEST_F(SmallBackward, LSE_read_before_its_barrier) {
  expect_complaint(Break::kVectorUnawaited, {kUnfilled});
}
TEST_F(SmallBackward, Q_released_before_dK_is_over) {
  expect_complaint(Break::kReleasedEarly, {kOverRead});
}
TEST_F(SmallBackward, dQ_read_while_its_product_works_on_it) {
  expect_complaint(Break::kDqReadInFlight,
                   {"an accumulator was read while a product worked on it"});
}
TEST_F(SmallBackward, dQ_written_while_its_product_works_on_it) {
  expect_complaint(Break::kDqWrittenInFlight,
                   {"an accumulator was written while a product worked on it"});
}
TEST_F(SmallBackward, dQ_staged_over_the_one_before) {
  expect_complaint(Break::kStagedBeforeAsked, {kUntold, kOverRead});
}
TEST_F(SmallBackward, dQ_staged_without_a_fence) {
  expect_complaint(Break::kStagedUnfenced, {kUnfenced});
}
TEST_F(SmallBackward, dQ_added_before_it_was_staged) {
  expect_complaint(Break::kAddedUnasked, {kUnfilled, kUntold});
}
TEST_F(SmallBackward, dQ_handed_back_while_it_is_read) {
  expect_complaint(Break::kNoWaitRead, {kOverRead});
}
TEST_F(SmallBackward, dK_still_read_at_the_end) {
  expect_complaint(Break::kLeftInFlight,
                   {"warp 4 left with copies in flight", "warp 8 left with copies in flight"});
}
TEST_F(SmallBackward, dK_staged_over_K_while_it_is_read) {
  expect_complaint(Break::kStagedOverK, {kUntold, kOverRead});
}
TEST_F(SmallBackward, more_registers_than_the_launch_got) {
  expect_complaint(Break::kTooManyRegisters, {"deadlock:"});
}

}  // namespace
}  // namespace fa3::hopper
