// SPDX-License-Identifier: Apache-2.0
// O of a warp on its way out: its 16 rows, packed, in the warp's own shared memory, from where TMA
// takes them while the warp goes on. Next: store_tile.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

template <Kernel C>
class StagedRows {
 public:
  // `address`: the warp's rows lie there.
  __device__ __forceinline__ explicit StagedRows(uint32_t address) : address_(address) {}

  // Before the warp stores there again, and before the kernel ends.
  static __device__ __forceinline__ void wait() {
    ptx::cp_async_bulk_wait_group_read<0>();
    __syncwarp();
  }

  // The thread's numbers of O, each times its row's factor.
  __device__ __forceinline__ void put(const float (&output)[C.shape.head_dim_v / 2],
                                      const float (&factor)[kRowsPerThread]) const {
    constexpr tile::TileLayout kRows = C.tiles_in_smem().staged_o;
    constexpr int kDepth = kRows.mma_depth();
    const auto [row, column] = tile::stored_place(int(thread_in_block() % kWarpSize));
#pragma unroll
    for (int step = 0; step < kRows.columns / kDepth; ++step) {
      uint32_t matrices[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 8 * step + 2 * j;
        const float by = factor[fragment_row_index(i)];
        matrices[j] = pack_pair<C.element>(output[i] * by, output[i + 1] * by);
      }
      ptx::stmatrix_x4(address_ + kRows.chunk_offset(row, step * kDepth + column), matrices);
    }
    ptx::fence_proxy_async();
    __syncwarp();
  }

  // `first_row`: the warp's, in its sequence.
  __device__ __forceinline__ void send(const ForwardParams& params, const cuda::QueryRows& queries,
                                       int first_row) const {
    constexpr tile::TileLayout kRows = C.tiles_in_smem().staged_o;
    const int query = params.output.pack.query(first_row);
    // Out of shared memory once, not for each copy.
    ptx::TileCoordinates at{0, queries.begin + query, queries.pack, queries.batch};
    if (query >= queries.count || !ptx::elect_sync()) return;
    if (consumer_tuning(C).sends_slabs_together && params.o_slabs_together) {
      ptx::cp_async_bulk_tensor_store(params.o_map, {0, 0, at.head, at.batch, at.row}, address_);
      ptx::cp_async_bulk_commit_group();
      return;
    }
#pragma unroll
    for (int slab = 0; slab < kRows.slabs(); ++slab) {
      at.column = slab * kRows.slab_columns();
      if (at.column >= params.output.o.columns) break;
      ptx::cp_async_bulk_tensor_store(params.o_map, at, address_ + slab * kRows.slab_bytes());
    }
    ptx::cp_async_bulk_commit_group();
  }

 private:
  const uint32_t address_;
};

}  // namespace fa3::hopper
