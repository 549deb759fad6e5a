// SPDX-License-Identifier: Apache-2.0
//
// Cells of the workspace by which a forward's CTAs tell each other of splits: counters, of which
// the last to count combines, or flags for the CTA that opens the tile.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "forward/forward_work.h"

namespace fa3::hopper {

class ForwardCounts {
 public:
  using Work = ForwardWork;

  ForwardCounts(const LaunchedForward& launch, const ForwardWorks& works)
      : launch_(launch), works_(works) {}

  // Every second time the CTAs that share tiles with CTA 0 are done already; else the workspace
  // holds what it held.
  void prepare() const {
    if (!is_counted() || !is_last()) return;
    for (const Work& work : works_.works_of(0, {})) {
      if (work.is_split()) cell_of(work) = counted(work.combine.num_splits - 1);
    }
  }

  void expect_left(const std::vector<Work>& tiles) const {
    if (is_counted()) expect_counted(tiles);
    if (launch_.opener_combines) expect_flags_taken_back(tiles);
  }

 private:
  bool is_counted() const { return launch_.config.combine() == CombineKind::kLastCta; }
  bool is_last() const { return launch_.trial.seed % 2 == 1; }
  uint64_t counted(int splits) const {
    return launch_.params.counts.launch << SplitCounters::kBits | unsigned(splits);
  }
  uint64_t& cell_of(const Work& work) const {
    return launch_.params.counts.cells[work.combine.later_partials];
  }

  // CTA 0's splits are counted, once each. Whoever counts the last one combines, and leaves zero.
  void expect_counted(const std::vector<Work>& tiles) const {
    for (const Work& work : tiles) {
      if (!work.is_split()) continue;
      ASSERT_GT(work.combine.num_splits, 1);
      ASSERT_EQ(cell_of(work), counted(is_last() ? 0 : 1));
    }
  }

  // The opener has waited for each warp that has rows.
  void expect_flags_taken_back(const std::vector<Work>& tiles) const {
    const int warps = launch_.config.consumer_warps();
    for (const Work& work : tiles) {
      if (!work.is_split() || work.opens) continue;
      for (int warp = 0; warp < warps; ++warp) {
        if (works_.num_blocks_of(work, warp / kWarpsPerWarpgroup) == 0) continue;
        ASSERT_EQ(launch_.params.counts.cells[work.partial * warps + warp], counted(0))
            << "warp " << warp;
      }
    }
  }

  const LaunchedForward& launch_;
  const ForwardWorks& works_;
};

}  // namespace fa3::hopper
