// SPDX-License-Identifier: Apache-2.0
// The rows that the warps of a cluster have, each of keys of its own, become one: first those of a thread
// block, in its shared memory, then those of all its thread blocks, each of which takes some of the rows
// and reads the others' shares of them. Next: ../merge_last.cuh, which merges pieces of a tile.
#pragma once

#include "engine/hopper/merge_last.cuh"
#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/stream/warp_rows.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
struct JoinSmem {
  static constexpr int kWarps = StreamSlots<C>::kWarps;
  // Of each warp; in the first one's place then, of all.
  alignas(16) float rows[kWarps][C.block_m * WarpRows<C>::kPartStride];
  float2 stats[kWarps][C.block_m];  // reference and sum
};

template <ForwardConfig C>
class Join {
 public:
  __device__ __forceinline__ Join(JoinSmem<C>& smem, int warp, RowShare share)
      : smem_(smem), warp_(warp), share_(share) {}

  // A warp is done with its keys.
  __device__ __forceinline__ void put(WarpRows<C>& rows) {
    if (begun_) ptx::cluster_wait();  // the last rows have been read
    rows.store(smem_.rows[warp_], smem_.stats[warp_]);
  }

  // When all are: visit(sum, row, column) for those of the rows that this thread block is to write, each by
  // a warp, four columns a lane.
  template <class Visit>
  __device__ __forceinline__ void all(int rows, Visit&& visit) {
    __syncthreads();
#pragma unroll 1
    for (int row = warp_; row < rows; row += kWarps) {
      MergedSum sums[kPasses];
      each_column([&](int pass, int column) { sums[pass] = of_warps(row, column); });
      __syncwarp();  // every lane has read
      each_column([&](int pass, int column) { put_joined(row, column, sums[pass]); });
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
#pragma unroll 1
    for (int row = share_.first + warp_ * share_.step; row < rows; row += kWarps * share_.step) {
      each_column([&](int, int column) {
        MergedSum sum = of_blocks(row, column);
        visit(sum, row, column);
      });
    }
    ptx::cluster_arrive_relaxed();
    begun_ = true;
  }

  // No thread block is gone while others read its shared memory.
  __device__ __forceinline__ void end() {
    if (begun_) ptx::cluster_wait();
  }

 private:
  static constexpr int kWarps = JoinSmem<C>::kWarps;

  template <class Visit>
  static __device__ __forceinline__ void each_column(Visit&& visit) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = pass * kMergedColumns + ptx::lane() * kLaneColumns;
      if (column < C.head_dim_v) visit(pass, column);
    }
  }
  static constexpr int kPasses = (C.head_dim_v + kMergedColumns - 1) / kMergedColumns;

  __device__ __forceinline__ float* row_of(int warp, int row, int column) const {
    return &smem_.rows[warp][row * WarpRows<C>::kPartStride + column];
  }

  // What was counted from stats.x, of weights stats.y in all; `o` may hold anything where there are none.
  static __device__ __forceinline__ void add(MergedSum& all, float2 stats, const float4& o) {
    if (stats.y == 0) return;  // a NaN counts
    const float weight = all.ref == -kInfinity ? 1.0f : ex2(stats.x - all.ref);
    all.sum = __fmaf_rn(weight, stats.y, all.sum);
    all.columns = {__fmaf_rn(weight, o.x, all.columns.x), __fmaf_rn(weight, o.y, all.columns.y),
                   __fmaf_rn(weight, o.z, all.columns.z), __fmaf_rn(weight, o.w, all.columns.w)};
  }

  __device__ __forceinline__ MergedSum of_warps(int row, int column) const {
    MergedSum all;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all.ref = fmaxf(all.ref, smem_.stats[w][row].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      add(all, smem_.stats[w][row], *reinterpret_cast<const float4*>(row_of(w, row, column)));
    }
    return all;
  }

  __device__ __forceinline__ void put_joined(int row, int column, const MergedSum& sum) const {
    *reinterpret_cast<float4*>(row_of(0, row, column)) = sum.columns;
    if (column == 0) smem_.stats[0][row] = {sum.ref, sum.sum};
  }

  __device__ __forceinline__ MergedSum of_blocks(int row, int column) const {
    const uint32_t at = ptx::cvta_to_shared(row_of(0, row, column));
    const uint32_t stats_at = ptx::cvta_to_shared(&smem_.stats[0][row]);
    MergedSum all;
#pragma unroll 1
    for (int first = 0; first < share_.step; first += kAtOnce) {
      float2 stats[kAtOnce];
      float4 o[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        stats[i] = {-kInfinity, 0};
        if (first + i >= share_.step) continue;
        stats[i] = ptx::ld_cluster_f32x2(ptx::in_block_of_cluster(stats_at, first + i));
        o[i] = ptx::ld_cluster_f32x4(ptx::in_block_of_cluster(at, first + i));
      }
      float most = all.ref;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) most = fmaxf(most, stats[i].x);
      all.raise(most);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) add(all, stats[i], o[i]);
    }
    return all;
  }
  static constexpr int kAtOnce = 8;  // thread blocks

  JoinSmem<C>& smem_;
  const int warp_;
  const RowShare share_;
  bool begun_ = false;
};

}  // namespace fa3::hopper
