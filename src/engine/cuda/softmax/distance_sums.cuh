// SPDX-License-Identifier: Apache-2.0
// Sums of a warp's numbers along the diagonals of a tile of 16 keys by 8 n queries. Where a
// function reads a table by the distance of key and query, all pairs of one distance add to one
// gradient. Summing them in registers costs less than one addition to memory. Next:
// score_gradient.cuh.
#pragma once

#include "engine/cuda/ptx/add_to_memory.cuh"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::cuda {

class DistanceSums {
 public:
  // Numbers come in the order of fragment.h, keys as rows and queries as columns, from all lanes.
  // table: the elements of all distances, or null. index: of the number's element in the table; it
  // changes by `step` from key to key and by -step from query to query, and is clamped afterwards.
  __device__ __forceinline__ void take(int element, float value, float* table, int index, int step,
                                       int extent) {
    const int neighbour = element % 2;
    if (fragment_row_index(element) == 0) {
      newest_[neighbour] = value;
      return;
    }
    // Eight keys on, that is the diagonal of the eight queries before.
    sums_[neighbour] += value;
    if (neighbour == 0) return;
    table_ = table, step_ = step, extent_ = extent;
    index_ = index + step;  // of the neighbour before
    add_diagonals(index_);
    sums_[0] = newest_[0], sums_[1] = newest_[1];
  }

  // Behind the last number.
  __device__ __forceinline__ void finish() const { add_diagonals(index_ - 8 * step_); }

 private:
  // The diagonals of 8 x 8 numbers, two of a lane: that of lane l's first one is l / 4 - 2 (l % 4),
  // that of its second one is one less. index: of the first one.
  __device__ __forceinline__ void add_diagonals(int index) const {
    if (table_ == nullptr) return;
    constexpr unsigned kAll = 0xffffffff;
    constexpr int kCorner = 31;  // adds what no first one lies on: the second one of lane 3
    const int lane = int(thread_in_block() % kWarpSize);
    const int row = lane / kQuadLanes, pair = lane % kQuadLanes;
    float sum = sums_[0];
    const float below = __shfl_down_sync(kAll, sums_[1], kQuadLanes);
    if (row < 7) sum += below;
    // The second sums of the last row, which has none below, lie on the second row's first ones.
    const float other = __shfl_sync(kAll, sums_[1], lane == kCorner ? 3 : (lane - 5) & kCorner);
    if (row == 1 && pair > 0) sum += other;
    // Two rows on and a pair of columns on is the same diagonal: up to four such lanes.
    constexpr int kNext = 2 * kQuadLanes + 1;
    const float next = __shfl_down_sync(kAll, sum, kNext);
    if (row < 6 && pair < 3) sum += next;
    const float after = __shfl_down_sync(kAll, sum, 2 * kNext);
    if (row < 4 && pair < 2) sum += after;
    if (lane == kCorner) sum = other, index -= 8 * step_;
    const bool is_first = row < 2 || pair == 0 || lane == kCorner;
    if (!is_first || sum == 0.0f) return;
    const int from_begin = index < 0 ? index + extent_ : index;
    const int place = from_begin < 0 ? 0 : from_begin < extent_ ? from_begin : extent_ - 1;
    add_to_memory(table_ + place, sum);
  }

  float* table_ = nullptr;
  int step_ = 0, extent_ = 1;
  float newest_[2] = {}, sums_[2] = {};
  int index_ = 0;
};

}  // namespace fa3::cuda
