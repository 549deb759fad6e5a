// SPDX-License-Identifier: Apache-2.0
//
// The backward's main kernel on the machine, CTA by CTA, or pair by pair: what every warp
// multiplies, adds and stores is compared with what it should.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backward/backward_buffers.h"
#include "backward/backward_departures.h"
#include "backward/backward_products.h"
#include "backward/backward_work.h"
#include "backward/launched_backward.h"
#include "machine.h"

namespace fa3::hopper {

using machine::Fault;
using machine::Outcome;

template <BackwardConfig C>
class BackwardRun {
  using Work = BackwardWork<C>;
  using Step = typename BackwardProducts<C>::Step;
  using Left = typename BackwardDepartures<C>::Left;

 public:
  static constexpr int kPlannedSms = LaunchedBackward<C>::kPlannedSms;

  explicit BackwardRun(const CallShape& s, bool deterministic = false)
      : launch_(s, deterministic) {}
  BackwardRun(const CallShape& s, MainLaunch main, int sms) : launch_(s, false, main, sms) {}

  int tiles() const { return launch_.tiles; }
  int step_splits() const { return launch_.params.order.step_splits; }

  // Runs a tile; both CTAs, if it has a pair.
  Outcome run(int tile, machine::Setting setting) const {
    setting.buffers = backward_buffers<C>();
    if constexpr (C.pairs()) {
      const BackwardAddresses<C> at{machine::kSmemBase};
      for (uint32_t i = 0; i < C.shape.ds_stages; ++i) {
        setting.expect_ahead.push_back(at.pair_pipeline().full(i));
      }
    }
    if (C.persistent()) *launch_.params.scratch.dq_semaphore = 0;
    const Work at = works_.work_of(tile);
    if (launch_.has_order() && at.exists) {
      for (const QueryBlock& b : works_.blocks_of(at)) {
        *works_.counter_of(at, b) = works_.dq_order(at, b);
      }
    }
    const machine::Ctas ctas{.grid = {unsigned(launch_.tiles), 1, 1},
                             .first = first_of(tile),
                             .count = C.ctas(),
                             .cluster = C.ctas()};
    return machine::run_ctas(setting, kWarps, ctas, [this] {
      if constexpr (C.can_split_steps()) {
        if (step_splits() > 1) return backward_kernel<C.with_step_splits()>(launch_.params);
      }
      backward_kernel<C>(launch_.params);
    });
  }

  void expect_all_work_done(int tile, const Outcome& outcome) const {
    ASSERT_EQ(outcome.error, "");
    std::vector<Left> expected;
    for (int cta = 0; cta < C.ctas(); ++cta) {
      const std::vector<Work> works = works_.works_of(first_of(tile) + cta, outcome.drawn);
      for (int warp = 0; warp < kWarps; ++warp) {
        std::vector<Step> made;
        for (const machine::Product& p : outcome.products[size_t(cta * kWarps + warp)]) {
          made.push_back(BackwardProducts<C>::step_of(p));
        }
        ASSERT_EQ(made, products_.of_warp(warp, works)) << "CTA " << cta << ", warp " << warp;
      }
      for (const Work& at : works) departures_.add(expected, at);
    }
    std::vector<Left> left;
    for (const machine::Departure& d : outcome.departures) {
      left.push_back({d.warp, d.to, d.row, d.rows, d.column, d.head, d.batch, d.adds});
    }
    std::sort(left.begin(), left.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(left, expected);
    const std::set<const void*> stored(outcome.stored.begin(), outcome.stored.end());
    ASSERT_EQ(stored.size(), outcome.stored.size()) << "stored twice";
    if (C.wide() && works_.work_of(tile).exists) {
      ASSERT_EQ(stored, departures_.wide_rows_of(works_.work_of(tile)));
    }
    if (launch_.has_order()) {
      ASSERT_EQ(broken_order(tile, outcome), "");
    }
  }

  // The counter must have come to these CTAs; then each adds everything, then it counts on.
  std::string broken_order(int tile, const Outcome& outcome) const {
    std::string broken;
    for (int cta = 0; cta < C.ctas() && broken.empty(); ++cta) {
      broken = broken_order_of_cta(cta, works_.work_of(tile), outcome);
    }
    return broken;
  }

 private:
  static constexpr int kWarps = C.threads() / kWarpSize;

  std::string broken_order_of_cta(int cta, const Work& at, const Outcome& outcome) const {
    if (!at.exists) return "";
    for (const QueryBlock& b : works_.blocks_of(at)) {
      const int* const counter = works_.counter_of(at, b);
      const int before = works_.dq_order(at, b);
      size_t begin = outcome.departures.size(), end = begin;
      int counted = 0;
      for (const machine::SemaphoreUse& use : outcome.semaphore_uses) {
        if (use.counter != counter || use.cta != cta) continue;
        if (!use.adds && use.value >= before) begin = std::min(begin, use.departures);
        if (use.adds) end = use.departures, counted += use.value;
      }
      if (counted != 1) return "a semaphore counted on by " + std::to_string(counted);
      const float* const dq_block = works_.dq_block_of(at, b);
      for (size_t i = 0; i < outcome.departures.size(); ++i) {
        const machine::Departure& departure = outcome.departures[i];
        const auto* const to = static_cast<const float*>(departure.to);
        const bool adds = departure.adds && departure.warp / kWarps == cta && to >= dq_block &&
                          to < dq_block + C.dq_accum().block_floats();
        if (adds && (i < begin || i >= end)) return "an addition out of order";
      }
    }
    return "";
  }

  static int first_of(int tile) { return tile - tile % C.ctas(); }

  LaunchedBackward<C> launch_;
  BackwardWorks<C> works_{launch_};
  BackwardProducts<C> products_{launch_, works_};
  BackwardDepartures<C> departures_{launch_, works_};
};

}  // namespace fa3::hopper
