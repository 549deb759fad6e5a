// SPDX-License-Identifier: Apache-2.0
// The policy of scores, ScoresOf<C>: what S begins with, what happens to Q K^T before the mask, and
// the softmax hook (cuda/softmax/score.cuh) that the policy itself is. Scaled scores are here. The
// source of a kernel includes the others:
//   scores_capped.cuh    soft-capped scores
//   scores_e4m3.cuh      e4m3 operands
//   scores_cached.cuh    a quantized cache
//   scores_function.cuh  a score function of the caller's
#pragma once

#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/softmax/score.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

template <Kernel C>
struct ScoresOf;

// What the consumer asks of a policy beside its hook, where nothing is to be done. `c` is the
// Consumer, `r` the ThreadTile.
struct ScoreVerbs {
  static constexpr bool kAdds = false;     // Q K^T is added to what start() leaves in S
  static constexpr bool kMayHide = false;  // blocks that the mask leaves whole may hide all keys
  static constexpr int kKeysTogether = 1;  // a tile's first key is a multiple of it
  struct Registers {};                     // of a thread, for each block
  struct Tiles {};                         // in shared memory, aligned as tiles are
  struct Numbers {};                       // in shared memory

  // What the thread that loads K and V loads for the policy.
  struct Loads {
    template <class... Args>
    __device__ __forceinline__ explicit Loads(const Args&...) {}
    template <class Work>
    __device__ __forceinline__ void start_tile(const Work&) const {}
    template <class Keys>
    __device__ __forceinline__ void load(const Keys&, int) const {}
  };
  // What the loader's helper warps do in this kernel.
  template <class Helper>
  using HelperOf = Helper;
  template <class Addresses>
  static __device__ __forceinline__ void init_pipelines(Addresses, int) {}

  // Once a tile: with its work tile, and with its Q.
  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(Consumer&, const Work&, uint32_t) {}
  template <class Consumer>
  __device__ __forceinline__ void receive_queries(Consumer&) {}

  // Once a block, in this order: before the warpgroup's turn to issue products, in it, behind it,
  // and with the scores there. Or the block is another warpgroup's.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(Consumer&, Tile&) {}
  template <class Consumer, class Tile>
  __device__ __forceinline__ void issue(const Consumer&, Tile&) const {}
  template <class Consumer>
  __device__ __forceinline__ void read(const Consumer&, uint32_t) {}
  template <class Consumer, class Tile>
  __device__ __forceinline__ void load_ahead(const Consumer&, Tile&, int) const {}
  template <class Consumer>
  __device__ __forceinline__ void release(const Consumer&) {}
  template <class Consumer>
  __device__ __forceinline__ void pass_block(const Consumer&) {}

  // How many of a thread's two rows of the tile are queries'.
  static __device__ __forceinline__ constexpr int live_rows() { return kRowsPerThread; }
  // The rows of a finished tile, whose work tile is in this stage, with references for the LSE.
  template <class Consumer>
  __device__ __forceinline__ const RowState& with_references(const Consumer&, uint32_t,
                                                             const RowState& rows) const {
    return rows;
  }
};

// Where the hook's prepare() is all that happens to scores.
template <class Hook>
struct PreparedScores : Hook, ScoreVerbs {
  // From products to what the mask and the softmax take.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void finish(Consumer&, Tile& r) const {
    Hook::prepare(r.scores);
  }
  // finish() for products that are computed a second time.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void recompute(Consumer& c, Tile& r) const {
    finish(c, r);
  }
};

template <Kernel C>
using ScaledHook = ScoreOf16BitP<ScaledScore, C.shape.block_n, headroom_log2(C)>;

template <Kernel C>
requires(!kHasScoreFunction && C.scores == Scores::kScaled && !C.e4m3() &&
         !C.dequantizes()) struct ScoresOf<C> : PreparedScores<ScaledHook<C>> {
  __device__ __forceinline__ explicit ScoresOf(const ForwardParams& params)
      : PreparedScores<ScaledHook<C>>{{{params.scale_log2}}} {}
};

}  // namespace fa3::hopper
