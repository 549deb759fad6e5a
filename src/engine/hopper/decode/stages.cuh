// SPDX-License-Identifier: Apache-2.0
// Keys and values on their way to one warp: stages of a few rows of K or of V in shared memory,
// which take turns in a pipeline that no other warp waits for. Next: load_tma.cuh and
// load_cp_async.cuh, which fill them, warp_rows.cuh, which reads them.
#pragma once

#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/decode/warp_keys.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

template <Kernel C>
struct DecodeStages {
  static constexpr int kWarpsLog2 = 3, kWarps = 1 << kWarpsLog2;
  static_assert(kWarps == C.consumer_warps());
  static constexpr int kKeys = decode_shape(C).stage_keys;
  static constexpr int kStages =
      decode_shape(C).stages;  // number n has rows of K if n is even, else of V
  static constexpr tile::TileLayout kK{kKeys, C.shape.head_dim, bytes_of(C.types().stored)};
  static constexpr tile::TileLayout kV{kKeys, C.shape.head_dim_v, bytes_of(C.types().stored)};
  static constexpr int kBytes = kK.bytes();
  static_assert(kV.bytes() == kBytes);
  using Keys = WarpKeys<kKeys>;
};

// Where a chunk of a stage's row lies: number `chunk` + `more`, which the compiler knows but for
// `more`.
template <tile::TileLayout Layout>
__device__ __forceinline__ int chunk_offset(int row, int chunk, int more = 0) {
  constexpr int kChunks = Layout.row_bytes() / tile::kChunkBytes;  // of a slab
  return chunk / kChunks * Layout.slab_bytes() + row * Layout.row_bytes() +
         Layout.swizzled_chunk(chunk % kChunks + more, row) * tile::kChunkBytes;
}

// The keys [begin, end) of one sequence and key head that a cluster attends to.
struct DecodeKeys {
  int batch;  // or entry of the page table
  int kv_head;
  int begin, end;
  int most;  // the most that `end` may become: no key from there on is looked up
};

}  // namespace fa3::hopper
