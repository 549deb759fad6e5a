// SPDX-License-Identifier: Apache-2.0
// Tiles of a captured tensor as large as the scores, a bias say, that arrive by TMA
// (ElementKind::kOfScore of score_captures.h). A step's tile comes into the stage in which the
// step's dS will be: a warp writes dS of the elements that it alone has read, so no shared memory
// is taken and nobody waits but the loader, for the stage. Next: function_tile.cuh.
#pragma once

#include "engine/cuda/softmax/score_function.cuh"
#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// Where a step's tile is in its tensor, or in the gradient, which repeats nothing.
template <BackwardConfig C, bool OfGradient>
__device__ __forceinline__ ptx::TileCoordinates captured_place(
    const BackwardParams& params, const KeyBlockWork<C>& work,
    const typename KeyBlockWork<C>::Block& block) {
  int head = 0, m_block = 0;
  if constexpr (C.block_mask()) {
    head = work.at(block).head;
    m_block = work.at(block).m_block;
  } else {
    head = block.head;
    m_block = block.m_block;
  }
  const ScoreFunction function{params.score.captures};
  const auto [others] = function.place(ScoreFunction::Tile{function, !OfGradient}, work.sequence(),
                                       head, m_block * C.shape.block_m, work.first_key());
  return {work.first_key(), m_block * C.shape.block_m, others[0], others[1]};
}

// The gradient of the tensor, where its elements are the scores' own: dS, from its stage.
template <BackwardConfig C>
__device__ __forceinline__ void store_captured_gradient(const BackwardParams& params, uint32_t ds,
                                                        ptx::TileCoordinates place) {
  constexpr tile::TileLayout kTile = C.ds_tile();
#pragma unroll 1
  for (int slab = 0; slab < kTile.slabs(); ++slab) {
    ptx::cp_async_bulk_tensor_store(params.score.gradient_map, place,
                                    ds + slab * kTile.slab_bytes());
    place.column += kTile.slab_columns();
  }
  ptx::cp_async_bulk_commit_group();
}

// The thread that loads them: a helper, or one of warpgroup 0.
template <BackwardConfig C>
class CapturedTileLoader {
 public:
  __device__ __forceinline__ CapturedTileLoader(const BackwardParams& params,
                                                BackwardAddresses<C> at,
                                                const KeyBlockWork<C>& work)
      : params_(params),
        at_(at),
        work_(work),
        block_(work.first_queries()),
        left_(work.num_steps()) {}

  // For a helper.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    while (left_ > 0) load_next();
  }

  __device__ __forceinline__ void load_first() {
#pragma unroll 1
    for (int i = 0; i < C.shape.ds_stages; ++i) load_next();
  }

  // Once all of warpgroup 0 has read the stage's last dS.
  __device__ __forceinline__ void load_next() {
    if (left_ == 0) return;
    constexpr tile::TileLayout kTile = C.ds_tile();
    const uint32_t full = at_.captured_pipeline().full(cursor_.stage());
    const ptx::TileCoordinates place = place_of(block_);
    at_.ds_pipeline().wait_empty(cursor_);
    tile::load_rows(params_.score.captured_map, kTile, kTile.rows, at_.ds(cursor_.stage()), full,
                    place);
    cursor_.advance();
    block_.advance(work_.steps());
    --left_;
  }

 private:
  using Block = typename KeyBlockWork<C>::Block;

  // Under a block mask it stands in the record of the step, which is there with the step's Q.
  __device__ __forceinline__ ptx::TileCoordinates place_of(const Block& block) {
    if constexpr (C.block_mask()) {
      at_.q_pipeline().wait_full(queries_);
      queries_.advance();
    }
    return captured_place<C, false>(params_, work_, block);
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  Block block_;
  int left_;  // steps to load
  PipelineState<C.shape.ds_stages> cursor_;
  PipelineState<C.shape.stages> queries_;
};

}  // namespace fa3::hopper
