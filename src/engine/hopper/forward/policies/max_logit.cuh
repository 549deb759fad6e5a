// SPDX-License-Identifier: Apache-2.0
// The largest score of each sequence and head. Guarded steps leave the reference below it, so a
// maximum is kept beside that, without an exchange until the tile ends: of P, which have no sign
// and compare as integers, two at a time; of the products, one at a time, where P is not a function
// of a product alone.
#pragma once

#include "engine/cuda/softmax/max_logit.cuh"
#include "engine/hopper/forward/policies/outputs.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Whether a product follows from its P.
constexpr bool looks_at_weights(const Kernel& c) {
  return !c.e4m3() && !c.dequantizes() && !c.capped();
}

// From a tile that ends with `largest` of a thread's rows.
template <Kernel C, class Consumer>
__device__ __forceinline__ void raise_max_logits(const Consumer& c,
                                                 const float (&largest)[kRowsPerThread],
                                                 float scale) {
  const WorkTileOf<C>& work = c.smem.work_tiles[c.stages.previous_work_tile()];
  cuda::raise_max_logits(c.params.outputs.max_logit, sequence_of_queries(work),
                         c.params.output.pack, work.queries, c.first_row_of(work), largest,
                         {scale, scale});
}

template <Kernel C>
requires(C.outputs.max_logit&& looks_at_weights(C)) struct LogitsOf<C> : NoLogits {
  struct Registers {
    float largest_p[kRowsPerThread];
  };

  template <class Tile>
  static __device__ __forceinline__ void start(Tile& r) {
    r.largest_p[0] = r.largest_p[1] = 0.0f;
  }
  template <int Begin = 0, int End = 0, class Tile>
  static __device__ __forceinline__ void see_weights(Tile& r) {
    cuda::raise_to_largest_p<Begin, (End > 0 ? End : Tile::kScores)>(r.largest_p, r.scores);
  }
  template <class Tile>
  static __device__ __forceinline__ void rescale(Tile& r, const float (&factor)[kRowsPerThread]) {
    r.largest_p[0] *= factor[0];
    r.largest_p[1] *= factor[1];
  }
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void finish(const Consumer& c, const Tile& r) {
    float largest[kRowsPerThread];
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      const float ref = r.rows.ref[row];  // infinite: so is a score
      const float of_p = cuda::log_sum<int(ScoresOf<C>::kTopLog2)>(ref, r.largest_p[row]);
      largest[row] = ref == kInfinity ? ref : of_p;
    }
    raise_max_logits<C>(c, largest, kLn2);
  }
};

template <Kernel C>
requires(C.outputs.max_logit && !looks_at_weights(C)) struct LogitsOf<C> : NoLogits {
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
  static __device__ __forceinline__ void see_products(const Consumer& c, Tile& r) {
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
    raise_max_logits<C>(c, r.largest,
                        C.e4m3() || C.dequantizes() ? 1.0f : c.params.outputs.max_logit.scale);
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
