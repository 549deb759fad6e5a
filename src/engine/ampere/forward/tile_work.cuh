// SPDX-License-Identifier: Apache-2.0
// What a CTA knows of its tile, in shared memory: read once or twice a block, it would take
// registers that products need. Next: key_tiles.cuh.
#pragma once

#include <type_traits>

#include "core/mask/key_blocks.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/ampere/forward/masked_visits.cuh"
#include "engine/ampere/forward_params.h"
#include "engine/cuda/mask/key_window.h"
#include "engine/cuda/mask/row_blocks.h"

namespace fa3::ampere {

using WarpBlocks = RowBlocks<KeyWindow>;

// Tells the compiler that x is equal in all lanes of a warp: branches on it do not diverge.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffff, x, 0);
}

struct WarpWork {
  WarpBlocks blocks;
  int fired_guards;  // so far (score_step.cuh)
};

struct NoVisits {};

template <ForwardConfig C>
struct TileWork {
  TileOfSequence tile;
  int kv_head;
  int first_key;   // of block 0, in the sequence
  int num_blocks;  // that the CTA visits
  int split;       // of the tile
  int keys_left;   // of the sequence, from block 0 on; and where these begin, unless in pages:
  const uint16_t* k;
  const uint16_t* v;
  WarpWork of_warp[C.warps()];
  [[no_unique_address]] std::conditional_t<C.block_mask, MaskedVisits, NoVisits> visits;

  __device__ __forceinline__ int first_row(int warp) const {
    return tile.first_row + warp * C.warp_rows();
  }
  // Where the block of a visit lies among those from first_key on.
  __device__ __forceinline__ int place_of(int block) const {
    if constexpr (C.block_mask) return visits.block(block);
    return block;
  }
  // Blocks of keys from first_key on, visited or not.
  __device__ __forceinline__ int range_blocks() const {
    if constexpr (C.block_mask) return visits.range_blocks();
    return num_blocks;
  }
};

// The scale of the keys or values of a quantized cache that the CTA reads, if it reads any.
template <ForwardConfig C>
__device__ __forceinline__ float cache_scale(const Descales<const float>& of,
                                             const TileWork<C>& work) {
  return of.data && work.num_blocks > 0 ? *of.at(work.tile.sequence, work.kv_head, 0) : 1.0f;
}

// Queries of the rows [first_row, first_row + rows) of a sequence, heads packed, that are used:
// others see nothing.
struct UsedQueries {
  int begin, end;

  __device__ __forceinline__ UsedQueries(const TileOfSequence& tile, PackGqa pack, int first_row,
                                         int rows)
      : begin(pack.query(first_row)),
        end(min(tile.rows.queries.used, pack.query(first_row + rows - 1) + 1)) {}
  __device__ __forceinline__ bool none() const { return begin >= end; }
};

// Which key blocks the CTA visits.
template <ForwardConfig C>
__device__ __forceinline__ void find_tile(const ForwardParams& params, int cta, TileWork<C>& work) {
  const TileSchedule& schedule = params.schedule;
  const TileOfSequence tile = schedule.tile(schedule.tile_of(cta));
  work.tile = tile;
  work.split = schedule.split_of(cta);
  work.kv_head = tile.pack / params.packs_per_kv_head;
  work.first_key = work.num_blocks = 0;
  if (tile.first_row < 0) return;
  const UsedQueries queries(tile, params.output.pack, tile.first_row, C.block_m);
  if (queries.none()) return;
  const KeyBlocks blocks = key_blocks(block_range(params.mask, queries.begin, queries.end,
                                                  tile.rows.queries.used, tile.rows.keys.count),
                                      C.block_n);
  const KeyBlockSplit split = schedule.split(work.split, blocks.first, blocks.end);
  work.first_key = split.first * C.block_n;
  work.num_blocks = split.end - split.first;
  const KeyRows& keys = tile.rows.keys;
  work.keys_left = keys.count - work.first_key;
  work.k = params.k.tensor.at(keys.batch, work.kv_head, keys.begin + work.first_key);
  work.v = params.v.tensor.at(keys.batch, work.kv_head, keys.begin + work.first_key);
  if constexpr (C.block_mask) {
    work.num_blocks = work.visits.template find<C>(params, tile, work.first_key, work.num_blocks);
  }
}

// And what a warp does with each of them.
template <ForwardConfig C>
__device__ __forceinline__ void find_blocks(const ForwardParams& params, int warp,
                                            TileWork<C>& work) {
  const TileOfSequence& tile = work.tile;
  const UsedQueries queries(tile, params.output.pack, work.first_row(warp), C.warp_rows());
  if (queries.none()) {
    work.of_warp[warp] = {{0, 0, 0, KeyWindow::of_nothing()}, 0};
    return;
  }
  const int used = tile.rows.queries.used, keys = tile.rows.keys.count;
  const auto range = block_range(params.mask, queries.begin, queries.end, used, keys);
  const auto edge = KeyWindow::of(params.mask, queries.begin, queries.end, used, keys);
  work.of_warp[warp] = {row_blocks_of_split(range.from(work.first_key), edge.from(work.first_key),
                                            C.block_n, work.range_blocks()),
                        0};
  // Which blocks all rows see is not known yet.
  if constexpr (C.block_mask) work.of_warp[warp].blocks.online_from = 0;
}

}  // namespace fa3::ampere
