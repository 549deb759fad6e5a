// SPDX-License-Identifier: Apache-2.0
// Who transposes which part of V, and when. Heads are transposed in the order in which the forward
// kernel's tiles come to them. All CTAs, one on each SM, transpose those that its first tiles read;
// then most leave their SMs to the forward kernel, and a few go on ahead of its tiles. So what a
// call waits for is the first heads, and not the memory's bandwidth for all of V. Plain constexpr:
// tested on the host. Next: prepare_e4m3.h.
#pragma once

#include "core/macros.h"

namespace fa3::hopper {

// A part is some keys of a head, by number: head * parts_of_head + part. There are at most
// kMostParts.
struct TransposeOrder {
  static constexpr int kMostParts = 1 << 30;
  int heads;  // of all sequences
  int parts_of_head;
  int ctas;
  int first_heads;  // transposed by all CTAs
  int late_ctas;    // which transpose the others; none if there are none

  FA3_HD constexpr bool goes_on_late() const { return first_heads < heads; }
  FA3_HD constexpr int parts() const { return heads * parts_of_head; }
  FA3_HD constexpr int first_parts() const { return first_heads * parts_of_head; }
};

// The parts of one team of warps of a CTA.
class TeamParts {
 public:
  FA3_HD constexpr TeamParts(const TransposeOrder& order, int cta, int team, int teams)
      : order_(order), cta_(cta), team_(team), teams_(teams) {
    begin(0, order.first_parts(), order.ctas);
    go_on();
  }

  FA3_HD constexpr bool done() const { return part_ >= end_; }
  FA3_HD constexpr int get() const { return part_; }
  FA3_HD constexpr void advance() {
    part_ += step_;
    go_on();
  }

 private:
  // Neighbours of a part go to other CTAs.
  FA3_HD constexpr void begin(int first, int end, int ctas) {
    part_ = first + cta_ + ctas * team_;
    end_ = end;
    step_ = ctas * teams_;
  }
  FA3_HD constexpr void go_on() {
    const bool more = end_ < order_.parts() && cta_ < order_.late_ctas;
    if (done() && more) begin(end_, order_.parts(), order_.late_ctas);
  }

  const TransposeOrder& order_;
  const int cta_, team_, teams_;
  int part_ = 0, end_ = 0, step_ = 0;
};

}  // namespace fa3::hopper
