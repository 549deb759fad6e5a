// SPDX-License-Identifier: Apache-2.0
// The rows that the warps of a cluster have, each of keys of its own, become one: first those of a
// CTA, in its shared memory; then each goes to the CTA of the cluster that joins it with
// the others' and stores it. Nobody waits for a cluster's barrier on the way: rows are sent, and
// their receiver counts bytes. Next: combine_splits.cuh, which combines splits of a tile.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/decode/warp_rows.cuh"
#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
struct ClusterReduceSmem {
  static constexpr int kMostCtas = 16;  // of a cluster
  static constexpr int kEntries = C.block_m > kMostCtas ? C.block_m : kMostCtas;
  // Rows to join, as WarpRows::store() leaves them: of the CTA's first row one from each thread
  // block, then of its next row.
  alignas(16) float received[kEntries * WarpRows<C>::kPartialStride];
  uint64_t arrived;
};

template <ForwardConfig C>
class ClusterReduce {
  static constexpr int kWarps = DecodeStages<C>::kWarps;
  static constexpr int kStride = WarpRows<C>::kPartialStride;

 public:
  __device__ __forceinline__ ClusterReduce(ClusterReduceSmem<C>& smem, int warp, int rows,
                                           RowShare share)
      : smem_(smem),
        arrived_(ptx::cvta_to_shared(&smem.arrived)),
        warp_(warp),
        rows_(rows),
        share_(share) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(arrived_, 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();  // for racecheck, which takes an init for that of any lane
    open();
  }

  // A warp is done with its keys. `part` is its own place.
  __device__ __forceinline__ void put(WarpRows<C>& rows, float* part) {
    close();  // all CTAs have begun, and joined their rows of the last item
    rows.store(part);
  }

  // When all are: visit(sum, row, column) for those of the rows that this CTA is to write, each by
  // a warp, four columns a lane. `parts(warp)` is a warp's place.
  template <class Parts, class Visit>
  __device__ __forceinline__ void all(const Parts& parts, bool are_last, Visit&& visit) {
    __syncthreads();
    if (!is_alone()) {
#pragma unroll 1
      for (int row = warp_; row < rows_; row += kWarps) {
        const auto part = [&](int w) { return parts(w) + row * kStride; };
        each_column([&](int column) { send(row, column, joined(kWarps, column, part)); });
      }
    }
#pragma unroll 1
    for (int i = warp_, row; row = share_.first + i * share_.step, row < rows_; i += kWarps) {
      if (!is_alone()) ptx::mbarrier_wait_parity_of_cluster(arrived_, phase_);
      const auto part = [&](int n) {
        return is_alone() ? parts(n) + row * kStride
                          : smem_.received + (i * share_.step + n) * kStride;
      };
      each_column([&](int column) {
        CombinedSum sum = joined(is_alone() ? kWarps : share_.step, column, part);
        visit(sum, row, column);
      });
    }
    phase_ ^= 1;
    if (!are_last) open();
  }

  // Waits until all have opened theirs, if this one has. At the end too, where there was nothing to
  // join.
  __device__ __forceinline__ void close() {
    if (is_open_) ptx::cluster_wait();
    is_open_ = false;
  }

 private:
  static constexpr int kPasses = (C.head_dim_v + kCombinedColumns - 1) / kCombinedColumns;
  static constexpr unsigned kRowBytes = C.head_dim_v * sizeof(float) + sizeof(float2);

  // Then there is nothing to send. (Nor may it be, where a launch has no clusters: an illegal
  // instruction.)
  __device__ __forceinline__ bool is_alone() const {
    return share_.step == 1;
  }

  // The received rows may make way for the next item's.
  __device__ __forceinline__ void open() {
    if (threadIdx.x == 0 && !is_alone()) {
      const int own = (rows_ - share_.first + share_.step - 1) / share_.step;
      if (own > 0) {
        ptx::mbarrier_arrive_expect_tx(arrived_, unsigned(own * share_.step) * kRowBytes);
      }
    }
    ptx::cluster_arrive();
    is_open_ = true;
  }

  template <class Visit>
  static __device__ __forceinline__ void each_column(Visit&& visit) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = pass * kCombinedColumns + ptx::lane() * kLaneColumns;
      if (column < C.head_dim_v) visit(column);
    }
  }

  // A row as the sum of its parts.
  template <class PartAt>
  static __device__ __forceinline__ CombinedSum joined(int parts, int column,
                                                       const PartAt& part_at) {
    CombinedSum all;
#pragma unroll 1
    for (int first = 0; first < parts; first += kAtOnce) {
      float2 stats[kAtOnce];
      float4 columns[kAtOnce];
      float most = all.ref;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool exists = first + i < parts;
        const float* const at = part_at(exists ? first + i : first);
        stats[i] = *reinterpret_cast<const float2*>(at + C.head_dim_v);
        columns[i] = *reinterpret_cast<const float4*>(at + column);
        if (!exists) stats[i] = {-kInfinity, 0};
        most = fmaxf(most, stats[i].x);
      }
      all.raise(most);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) all.add_weighted(stats[i].x, stats[i].y, columns[i]);
    }
    return all;
  }
  static constexpr int kAtOnce = 8;

  // To the CTA that joins the row.
  __device__ __forceinline__ void send(int row, int column, const CombinedSum& sum) const {
    const int to = row & (share_.step - 1), entry = row - to + share_.first;
    const uint32_t at = ptx::in_block_of_cluster(
        ptx::cvta_to_shared(smem_.received + entry * kStride), unsigned(to));
    const uint32_t arrived = ptx::in_block_of_cluster(arrived_, unsigned(to));
    ptx::st_async_f32x4(at + unsigned(column) * sizeof(float), sum.columns, arrived);
    if (column == 0) {
      ptx::st_async_f32x2(at + C.head_dim_v * sizeof(float), {sum.ref, sum.sum}, arrived);
    }
  }

  ClusterReduceSmem<C>& smem_;
  const uint32_t arrived_;
  const int warp_, rows_;
  const RowShare share_;
  uint32_t phase_ = 0;
  bool is_open_ = false;  // this thread has arrived at the cluster's barrier, but not waited
};

}  // namespace fa3::hopper
