// SPDX-License-Identifier: Apache-2.0
//
// A forward kernel's sources on the machine: launched as in the library, then held against what
// every warp should have multiplied and stored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "forward/forward_counts.h"
#include "forward/forward_departures.h"
#include "forward/forward_products.h"
#include "forward/forward_work.h"
#include "forward/launched_forward.h"
#include "machine.h"

namespace fa3::hopper {

// Tiles of e4m3 whose rows are peaked: their steps follow the maximum.
inline bool is_peaked(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2246822519u ^ unsigned(m_block * 17 + head * 5 + batch * 11);
  return mixed % 2 == 0;
}

class ForwardRun {
  using Work = ForwardWork;

 public:
  ForwardRun(const KernelOnTrial& kernel, const Trial& trial) : launch_(kernel, trial) {
    counts_.prepare();
    for (int i = 0; i <= trial.replays && (i == 0 || error().empty()); ++i) {
      std::ranges::fill(launch_.lse, std::nanf(""));
      ptx::has_dequantized[0] = ptx::has_dequantized[1] = false;
      run();
    }
  }

  const std::string& error() const { return outcome_.error; }
  bool opener_combines() const { return launch_.opener_combines; }

  // Every visible block of every tile of the CTAs that ran, once for each warp, in order.
  void expect_all_work_done() {
    ASSERT_EQ(error(), "");
    std::vector<Work> tiles;
    for (int cta = 0; cta < launch_.ctas(); ++cta) {
      const std::vector<Work> own = works_.works_of(cta, outcome_.drawn);
      for (int warp = 0; warp < config_.consumer_warps(); ++warp) {
        const int number = cta * warps_ + launch_.first_consumer() + warp;
        products_.expect_made(outcome_.products[size_t(number)], own, warp);
        if (testing::Test::HasFatalFailure()) return;
      }
      tiles.insert(tiles.end(), own.begin(), own.end());
    }
    departures_.expect_rows_written(tiles, outcome_);
    if (config_.dequantizes() && !tiles.empty()) {
      ASSERT_TRUE(ptx::has_dequantized_only(launch_.is_e5m2()));
    }
    counts_.expect_left(tiles);
  }

 private:
  void run() {
    const Trial& trial = launch_.trial;
    const dim3 grid{unsigned(launch_.blocks), 1, 1};
    const auto run_some = [&](const machine::Setting& how, int first, int count) {
      return machine::run_ctas(how, warps_, {.grid = grid, .first = first, .count = count},
                               [this] { launch_.kernel.kernel(launch_.params); });
    };
    if (trial.order.empty()) {
      outcome_ = run_some(setting(), 0, launch_.ctas());
      return;
    }
    outcome_ = {};
    outcome_.products.resize(size_t(launch_.ctas() * warps_));
    for (int cta : trial.order) {
      machine::Setting alone = setting();
      alone.stored_before = {outcome_.stored.begin(), outcome_.stored.end()};
      const machine::Outcome own = run_some(alone, cta, 1);
      outcome_.error = own.error;
      if (!own.error.empty()) return;
      outcome_.stored.insert(outcome_.stored.end(), own.stored.begin(), own.stored.end());
      std::ranges::copy(own.products, outcome_.products.begin() + ptrdiff_t(cta) * warps_);
    }
  }

  machine::Setting setting() const {
    const Trial& trial = launch_.trial;
    machine::Setting setting{.seed = trial.seed,
                             .neighbours = config_.shape.ctas_per_sm,
                             .pace = trial.pace,
                             .fault = trial.fault,
                             .kv = launch_.kernel.kv_pipeline,
                             .barrier = trial.barrier,
                             .pdl = launch_.pdl,
                             .buffers = launch_.kernel.buffers,
                             .tensors = launch_.copied_tensors()};
    if (trial.heads_in_work) {
      setting.counter_of = [this](const auto& read) { return launch_.counter_of(read); };
      setting.made = LaunchedForward::kParts;
    }
    const auto of_tile = [this](auto is, const Product& p) {
      return is(launch_.trial.seed, p.a.row / config_.shape.block_m, p.a.head, p.a.batch);
    };
    const bool plain = !launch_.shape.varlen() && !launch_.shape.finds_own_tiles();
    setting.infinite = [plain, of_tile](const Product& p) {
      return plain && p.scores() && p.b.row == 0 && of_tile(is_extreme, p);
    };
    setting.peaked = [this, of_tile](const Product& p) {
      return tracks_max(config_) && p.scores() && of_tile(is_peaked, p);
    };
    return setting;
  }

  LaunchedForward launch_;
  const Kernel& config_ = launch_.config;
  const int warps_ = config_.threads() / kWarpSize;
  ForwardWorks works_{launch_};
  ForwardProducts products_{launch_, works_};
  ForwardDepartures departures_{launch_};
  ForwardCounts counts_{launch_, works_};
  machine::Outcome outcome_;
};

}  // namespace fa3::hopper
