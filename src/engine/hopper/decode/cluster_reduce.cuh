// SPDX-License-Identifier: Apache-2.0
// The reduction over a cluster: the partial rows of its warps, each over keys of its own, become
// one. A CTA first reduces the rows of its warps in its own shared memory. Then it sends each row
// to the CTA of the cluster that reduces and stores it (DSMEM). No one waits for a cluster barrier
// on the way: the receiver's mbarrier counts bytes. Next: combine_splits.cuh, which combines
// splits.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/decode/warp_rows.cuh"
#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"

namespace fa3::hopper {

template <Kernel C>
struct ClusterReduceSmem {
  static constexpr int kMostCtas = 16;  // of a cluster
  static constexpr int kEntries = C.shape.block_m > kMostCtas ? C.shape.block_m : kMostCtas;
  // Partial rows as WarpRows::store() leaves them: one from each CTA for this CTA's first row, then
  // one from each for its next row.
  alignas(16) float received[kEntries * WarpRows<C>::kPartialStride];
  uint64_t arrived;
};

template <Kernel C>
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

  // A warp is done with its keys. `part` is where its rows go.
  __device__ __forceinline__ void put(WarpRows<C>& rows, float* part) {
    close();  // all CTAs have begun, and have reduced their rows of the last item
    rows.store(part);
  }

  // Once all warps are: visit(sum, row, column) for each row that this CTA writes, by one warp,
  // four columns a lane. `parts(warp)` is where a warp's rows are.
  template <class Parts, class Visit>
  __device__ __forceinline__ void all(const Parts& parts, bool are_last, Visit&& visit) {
    __syncthreads();
    if (!is_alone()) {
#pragma unroll 1
      for (int row = warp_; row < rows_; row += kWarps) {
        const auto part = [&](int w) { return parts(w) + row * kStride; };
        each_column([&](int column) { send(row, column, reduced(kWarps, column, part)); });
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
        CombinedSum sum = reduced(is_alone() ? kWarps : share_.step, column, part);
        visit(sum, row, column);
      });
    }
    phase_ ^= 1;
    if (!are_last) open();
  }

  // Waits until all have opened theirs, if this one has. At the end too, where there was no item.
  __device__ __forceinline__ void close() {
    if (is_open_) ptx::cluster_wait();
    is_open_ = false;
  }

 private:
  static constexpr int kPasses = (C.shape.head_dim_v + kCombinedColumns - 1) / kCombinedColumns;
  static constexpr unsigned kRowBytes = C.shape.head_dim_v * sizeof(float) + sizeof(float2);

  // Then nothing is sent. Without a cluster the instruction would be illegal.
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
      if (column < C.shape.head_dim_v) visit(column);
    }
  }

  // A row as the sum of its partial rows.
  template <class PartAt>
  static __device__ __forceinline__ CombinedSum reduced(int parts, int column,
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
        stats[i] = *reinterpret_cast<const float2*>(at + C.shape.head_dim_v);
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

  // To the CTA that reduces the row.
  __device__ __forceinline__ void send(int row, int column, const CombinedSum& sum) const {
    const int to = row & (share_.step - 1), entry = row - to + share_.first;
    const uint32_t at = ptx::in_block_of_cluster(
        ptx::cvta_to_shared(smem_.received + entry * kStride), unsigned(to));
    const uint32_t arrived = ptx::in_block_of_cluster(arrived_, unsigned(to));
    ptx::st_async_f32x4(at + unsigned(column) * sizeof(float), sum.columns, arrived);
    if (column == 0) {
      ptx::st_async_f32x2(at + C.shape.head_dim_v * sizeof(float), {sum.ref, sum.sum}, arrived);
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
