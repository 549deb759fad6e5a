// SPDX-License-Identifier: Apache-2.0
// In which order q, k and v are quantized by one launch. Tensors with a mean are cut into groups of
// heads, small enough that the L2 cache still has a group when it is read again: its blocks are
// added up in one period, its means are found in the next one, and its tiles are quantized kLead
// periods later. Tiles that need no mean lie between. Whoever takes tasks in this order waits only
// for tasks that were taken before. Plain constexpr: tested on the host. Next:
// quantize_together.cuh.
#pragma once

#include "engine/cuda/tile/divisor.h"

namespace fa3::hopper {

struct QuantizeTask {
  enum Kind { kNothing, kSum, kMean, kTile };
  Kind kind = kNothing;
  int tensor = 0, sequence = 0, head = 0;
  int block = 0;  // not of a mean
};

class QuantizeOrder {
 public:
  static constexpr int kMostTensors = 3;
  static constexpr int kLead = 3;  // periods

  // A tensor's heads, and the blocks of rows of each.
  struct Tensor {
    int batch = 0, heads = 0, blocks = 0;
    bool centred = false;
  };

  QuantizeOrder() = default;
  // A group has `group_blocks` blocks, or one head.
  constexpr QuantizeOrder(const Tensor (&tensors)[kMostTensors], int group_blocks) {
    for (int i = 0; i < kMostTensors; ++i) cut(i, tensors[i], group_blocks < 1 ? 1 : group_blocks);
    const int64_t periods = centred_ == 0 ? 1 : int64_t{groups_} * centred_ + kLead;
    share_plain_tiles(periods);
    const int64_t period = int64_t{units_} * int(unit_) + means_;
    tasks_ = period * periods;
    if (tasks_ < kTooMany) period_ = int(period);
  }

  static constexpr int64_t kTooMany = int64_t{1} << 30;
  // Some of them nothing. From kTooMany on there is no order.
  FA3_HD constexpr int64_t tasks() const { return tasks_; }

  FA3_HD constexpr QuantizeTask task(int number) const {
    const int period = number / period_;
    int i = number - period * period_;
    if (i >= means_from_) {
      if (i < means_from_ + means_) return mean(period - 1, i - means_from_);
      i -= means_;
    }
    const int unit = i / unit_, in_unit = i - unit * unit_;
    if (in_unit >= 2 * pairs_) {
      return plain_tile((period * units_ + unit) * plain_ + in_unit - 2 * pairs_);
    }
    const int pair = unit * pairs_ + in_unit / 2;
    return in_unit % 2 == 0 ? block(period, pair, QuantizeTask::kSum)
                            : block(period - kLead, pair, QuantizeTask::kTile);
  }

 private:
  // A group is some heads of one sequence, or all heads of some sequences.
  struct Cut {
    int batch = 0, sequences = 0, all_heads = 0, groups = 0, all_tiles = 0;
    cuda::Divisor heads = 1, blocks = 1;  // of a group, of a head
    cuda::Divisor parts = 1;              // groups of a sequence
  };

  constexpr void cut(int i, const Tensor& t, int group_blocks) {
    Cut& c = cuts_[i];
    const int64_t all = int64_t{t.batch} * t.heads * t.blocks;
    if (all == 0) return;
    c.batch = t.batch;
    c.all_heads = t.heads;
    c.blocks = t.blocks;
    if (!t.centred) {
      c.all_tiles = int(all);
      c.heads = t.heads;
      return;
    }
    const int64_t of_sequence = int64_t{t.heads} * t.blocks;
    const int64_t parts = (of_sequence + group_blocks - 1) / group_blocks;
    const int heads = parts >= t.heads ? 1 : int((t.heads + parts - 1) / parts);
    c.heads = heads;
    c.parts = (t.heads + heads - 1) / heads;
    c.sequences = int(of_sequence >= group_blocks ? 1 : group_blocks / of_sequence);
    if (c.sequences > t.batch) c.sequences = t.batch;
    c.groups = (t.batch + c.sequences - 1) / c.sequences * int(c.parts);
    tensors_[centred_++] = i;
    by_tensor_ = centred_;
    groups_ = c.groups > groups_ ? c.groups : groups_;
    means_ = c.sequences * heads > means_ ? c.sequences * heads : means_;
    const int blocks = c.sequences * heads * t.blocks;
    blocks_ = blocks > blocks_ ? blocks : blocks_;
  }

  // Units of `pairs` sums and tiles and `plain` tiles without a mean, so that the latter last as
  // long as the former.
  constexpr void share_plain_tiles(int64_t periods) {
    int64_t plain = 0;
    for (const Cut& c : cuts_) plain += c.all_tiles;
    if (centred_ == 0) {
      units_ = int(plain), plain_ = 1, pairs_ = 0, unit_ = 1;
      return;
    }
    const int64_t pairs = periods * blocks_;
    pairs_ = 1, plain_ = int((plain + pairs - 1) / pairs);
    for (int a = 2; a <= 8; ++a) {
      const int64_t b = (a * plain + pairs - 1) / pairs;
      if (b * pairs_ < int64_t{plain_} * a) pairs_ = a, plain_ = int(b);
    }
    units_ = (blocks_ + pairs_ - 1) / pairs_;
    unit_ = 2 * pairs_ + plain_;
    means_from_ = units_ / 2 * int(unit_);
  }

  struct Group {
    int tensor = -1;  // none
    int first_sequence = 0, first_head = 0;
  };

  FA3_HD constexpr Group group(int period) const {
    if (period < 0 || period >= groups_ * centred_) return {};
    const int number = period / by_tensor_, tensor = tensors_[period - number * by_tensor_];
    const Cut& c = cuts_[tensor];
    if (number >= c.groups) return {};
    const int entry = number / c.parts, part = number - entry * c.parts;
    return {tensor, entry * c.sequences, part * c.heads};
  }

  FA3_HD constexpr QuantizeTask of_group(const Group& g, int sequence, int head, int block,
                                         QuantizeTask::Kind kind) const {
    const Cut& c = cuts_[g.tensor];
    if (sequence >= c.sequences || g.first_sequence + sequence >= c.batch ||
        g.first_head + head >= c.all_heads) {
      return {};
    }
    return {kind, g.tensor, g.first_sequence + sequence, g.first_head + head, block};
  }

  FA3_HD constexpr QuantizeTask mean(int period, int i) const {
    const Group g = group(period);
    if (g.tensor < 0) return {};
    const cuda::Divisor& heads = cuts_[g.tensor].heads;
    const int sequence = i / heads;
    return of_group(g, sequence, i - sequence * heads, 0, QuantizeTask::kMean);
  }

  // Heads first, so that neighbours in memory are read together.
  FA3_HD constexpr QuantizeTask block(int period, int i, QuantizeTask::Kind kind) const {
    const Group g = group(period);
    if (g.tensor < 0) return {};
    const Cut& c = cuts_[g.tensor];
    const int row = i / c.heads, sequence = row / c.blocks;
    return of_group(g, sequence, i - row * c.heads, row - sequence * c.blocks, kind);
  }

  FA3_HD constexpr QuantizeTask plain_tile(int i) const {
    for (int tensor = 0; tensor < kMostTensors; ++tensor) {
      const Cut& c = cuts_[tensor];
      if (i < c.all_tiles) {
        const int row = i / c.heads, sequence = row / c.blocks;
        return {QuantizeTask::kTile, tensor, sequence, i - row * c.heads,
                row - sequence * c.blocks};
      }
      i -= c.all_tiles;
    }
    return {};
  }

  Cut cuts_[kMostTensors];
  int tensors_[kMostTensors] = {};  // with a mean
  int centred_ = 0;                 // how many of them
  cuda::Divisor by_tensor_ = 1;     // the same
  int groups_ = 0;                  // of the tensor with most
  int blocks_ = 0, means_ = 0;      // of the largest groups
  int means_from_ = 0;              // in a period
  int pairs_ = 0, plain_ = 0;       // of a unit
  int units_ = 0;                   // of a period
  cuda::Divisor unit_ = 1, period_ = 1;
  int64_t tasks_ = 0;
};

}  // namespace fa3::hopper
