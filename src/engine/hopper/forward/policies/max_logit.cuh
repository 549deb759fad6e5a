// SPDX-License-Identifier: Apache-2.0
// The largest score of each sequence and head. Guarded steps leave the reference below it, so the
// products' maximum is kept beside that: a comparison for each product, and no exchange until the
// tile ends.
#pragma once

#include "engine/cuda/softmax/max_logit.cuh"
#include "engine/hopper/forward/policies/outputs.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.outputs.max_logit) struct LogitsOf<C> {
  // A softcap makes finite scores of hidden ones: these are hidden again.
  static constexpr bool kHides = !C.capped();

  struct Registers {
    float largest[kRowsPerThread];
  };

  template <class Tile>
  static __device__ __forceinline__ void start(Tile& r) {
    r.largest[0] = r.largest[1] = -kInfinity;
  }
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void see(const Consumer& c, Tile& r) {
    if (C.shape.overlaps && c.is_masked()) c.weights.hide(c, r);  // else that is done
    constexpr int kSize = Tile::kScores / Score::kGroups;
    see_group<0, kSize>(c, r);
    if constexpr (Score::kGroups > 1) see_group<kSize, kSize>(c, r);
    if constexpr (Score::kGroups > 2) see_group<2 * kSize, kSize>(c, r);
    static_assert(Score::kGroups <= 3);
  }

  // The tile before the current one.
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void finish(const Consumer& c, const Tile& r) {
    const WorkTileOf<C>& work = c.smem.work_tiles[c.stages.previous_work_tile()];
    const float scale = C.e4m3() || C.dequantizes() ? 1.0f : c.params.outputs.max_logit.scale;
    cuda::raise_max_logits(c.params.outputs.max_logit, sequence_of_queries(work),
                           c.params.output.pack, work.queries, c.first_row_of(work), r.largest,
                           {scale, scale});
  }

 private:
  using Score = ScoresOf<C>;

  template <int Begin, int Size, class Consumer, class Tile>
  static __device__ __forceinline__ void see_group(const Consumer& c, Tile& r) {
    float largest[kRowsPerThread];
    cuda::largest_of_rows<Begin, Begin + Size>(r.scores, largest);
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      r.largest[row] = cuda::max_nan(r.largest[row], natural(c, row, Begin / Size, largest[row]));
    }
  }

  // Scales that change with the tile, or with a group of its keys, count at once.
  template <class Consumer>
  static __device__ __forceinline__ float natural(const Consumer& c, int row, int group,
                                                  float product) {
    if constexpr (C.e4m3()) {
      return product * (c.scores.factor[group] * kLn2);
    } else if constexpr (C.dequantizes() && C.types().rescales_queries()) {
      const float tile = C.capped() ? c.work_tile().place.key_scale : kLn2;
      return product * (c.scores.factor[row] * tile);
    } else if constexpr (C.dequantizes()) {
      return product * (c.work_tile().place.key_scale * (C.capped() ? 1.0f : kLn2));
    } else {
      return product;
    }
  }
};

}  // namespace fa3::hopper
