// SPDX-License-Identifier: Apache-2.0
// Tiles of a captured tensor as large as the scores, a bias say, by TMA (ElementKind::kOfScore of
// cuda/softmax/score_captures.h): one for each key block, in a pipeline of their own. By the thread
// that loads K and V. Next: producer.cuh.
#pragma once

#include "engine/cuda/lists/block_list.h"
#include "engine/cuda/softmax/score_function.cuh"
#include "engine/hopper/forward/consumer/score/score_smem.cuh"
#include "engine/hopper/forward/producer/kv_loader.cuh"

namespace fa3::hopper {

template <Kernel C>
class CapturedTiles {
  using Issuer = typename TileScheduler<C>::Issuer;

 public:
  __device__ __forceinline__ CapturedTiles(const ForwardParams& params, SmemAddresses<C> at)
      : params_(params), at_(at) {}

  __device__ __forceinline__ void start_tile(const WorkTileOf<C>& work) {
    first_row_ = work.first_row;
    const ScoreFunction function{params_.score.captures};
    others_ = function.place(ScoreFunction::Tile{function}, work.place.sequence_or(work.keys.batch),
                             work.queries.pack, first_row_, 0);
  }

  // The one of the tile's block `number`.
  __device__ __forceinline__ void load(const TileKeys& keys, int number) {
    captured_pipeline(at_).wait_empty(cursor_);
    if (Issuer::leads()) {
      tile::load_rows(params_.score.captured_map, C.captured_tile(), C.shape.block_m,
                      captured(at_, cursor_.stage()), captured_pipeline(at_).full(cursor_.stage()),
                      place_of(keys, number), 0, C.captured.ahead == Ahead::kTileReadOnce);
    }
    cursor_.advance();
  }

 private:
  __device__ __forceinline__ ptx::TileCoordinates place_of(const TileKeys& keys, int number) const {
    const int at = number * C.shape.block_n;
    const int key = C.block_mask() ? cuda::listed_key(keys.listed, at) : keys.first + at;
    return {key, first_row_, others_.index[0], others_.index[1]};
  }

  const ForwardParams& params_;
  const SmemAddresses<C> at_;
  int first_row_ = 0;
  ScoreFunction::Tile::Result others_{};  // indices of the tensor
  PipelineState<C.captured_stages()> cursor_;
};

}  // namespace fa3::hopper
