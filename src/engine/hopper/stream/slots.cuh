// SPDX-License-Identifier: Apache-2.0
// Keys and values on their way to one warp: slots of a few rows of K or of V in shared memory, which take
// turns in a ring that no other warp waits for. Next: box_ring.cuh and row_ring.cuh, which fill them,
// warp_rows.cuh, which reads them.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/stream/warp_turns.h"

namespace fa3::hopper {

template <ForwardConfig C>
struct StreamSlots {
  static constexpr int kWarpsLog2 = 3, kWarps = 1 << kWarpsLog2;
  static_assert(kWarps == C.consumer_warps());
  static constexpr int kKeys = C.slot_keys();
  static constexpr int kSlots = C.stream_slots();  // number n has rows of K if n is even, else of V
  static constexpr tile::TileLayout kK{kKeys, C.head_dim, bytes_of(C.stored())};
  static constexpr tile::TileLayout kV{kKeys, C.head_dim_v, bytes_of(C.stored())};
  static constexpr int kBytes = kK.bytes();
  static_assert(kV.bytes() == kBytes);
  using Turns = WarpTurns<kKeys>;
};

// Where a chunk of a slot's row lies: number `chunk` + `more`, which the compiler knows but for `more`.
template <tile::TileLayout Layout>
__device__ __forceinline__ int chunk_offset(int row, int chunk, int more = 0) {
  constexpr int kChunks = Layout.row_bytes() / tile::kChunkBytes;  // of a slab
  return chunk / kChunks * Layout.slab_bytes() + row * Layout.row_bytes() +
         Layout.swizzled_chunk(chunk % kChunks + more, row) * tile::kChunkBytes;
}

// Of one sequence and key head, the keys [begin, end) that a cluster attends to.
struct StreamedKeys {
  int batch;  // or entry of the page table
  int kv_head;
  int begin, end;
  int most;  // the most that `end` may become: no key from there on is looked up
};

}  // namespace fa3::hopper
