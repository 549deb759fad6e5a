// SPDX-License-Identifier: Apache-2.0
// Scores of kernels that are compiled at run time, for a score function of the caller's. Which of
// the policies below is the kernel's follows from what the function is known to do
// (cuda/softmax/score_captures.h).
#pragma once

#include "engine/hopper/forward/consumer/score/lines_score.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward/producer/load_captured.cuh"
#include "engine/hopper/forward/producer/write_key_terms.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/wgmma.cuh"

namespace fa3::hopper {

// `c` is the Consumer, `r` the ThreadTile.
template <Kernel C, class Hook>
struct FunctionVerbs : Hook, ScoreVerbs {
  static constexpr bool kMayHide = C.captured.may_hide;
  static constexpr bool kAdds = kAddsToScore;
  // TMA reads 16 bytes at multiples of 16, and pairs lie in a word.
  static constexpr int kKeysTogether = kLoadsTile || kLoadsPairs ? kCopyColumns : 1;
};

// The function replaces scores, or knows those it adds to. What it loads of the keys of a tile's
// first block comes under the block's products, of others under the block before.
template <Kernel C>
struct ReplacedScores : FunctionVerbs<C, ScoreOf16BitP<FunctionScore, C.shape.block_n>> {
  struct Registers : cuda::Pairs<C.shape.block_n / 2> {};
  using Hook = ScoreOf16BitP<FunctionScore, C.shape.block_n>;

  __device__ __forceinline__ explicit ReplacedScores(const ForwardParams& params)
      : FunctionVerbs<C, Hook>{Hook{FunctionScore(params)}} {}

  template <class Consumer, class Tile>
  __device__ __forceinline__ void load_ahead(const Consumer& c, Tile& r, int first_key) const {
    if constexpr (kLoadsPairs) {
      const WorkTileOf<C>& work = c.work_tile();
      Hook::load_ahead(r, c.params, work, c.first_row_of(work), first_key);
    }
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void finish(Consumer& c, Tile& r) const {
    const WorkTileOf<C>& work = c.work_tile();
    const int first_key = c.tile.first_key();
    Hook::prepare(r.scores, r, c.params, work, c.first_row_of(work), first_key);
    if (!c.tile.is_last_block()) load_ahead(c, r, first_key - C.shape.block_n);
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void recompute(Consumer& c, Tile& r) const {
    finish(c, r);
  }
};

// The place of a warpgroup in the pipeline of captured tiles, one for each key block.
template <Kernel C>
class CapturedCursor {
 public:
  // The address of the next one, once it is full.
  template <class Consumer>
  __device__ __forceinline__ uint32_t wait(const Consumer& c) const {
    captured_pipeline(c.stages.at()).wait_full(state_);
    return captured(c.stages.at(), state_.stage());
  }
  // All lanes have read it.
  template <class Consumer>
  __device__ __forceinline__ void release(const Consumer& c) {
    __syncwarp();
    if (leads_warp()) captured_pipeline(c.stages.at()).release(state_.stage());
    state_.advance();
  }

 private:
  PipelineState<C.captured_stages()> state_;
};

// A policy with such a cursor.
template <class Base, Kernel C>
struct WithCapturedTiles : Base {
  using Tiles = CapturedSmem<C>;
  using Loads = CapturedTiles<C>;
  using Base::Base;

  static __device__ __forceinline__ void init_pipelines(SmemAddresses<C> at, int consumers) {
    captured_pipeline(at).init(consumers);
  }

  template <class Consumer>
  __device__ __forceinline__ void pass_block(const Consumer& c) {
    captured_.wait(c);
    captured_.release(c);
  }

 protected:
  CapturedCursor<C> captured_;
};

// ReplacedScores that read tiles of a captured tensor.
template <Kernel C>
struct ReplacedByTile : WithCapturedTiles<ReplacedScores<C>, C> {
  using WithCapturedTiles<ReplacedScores<C>, C>::WithCapturedTiles;

  template <class Consumer, class Tile>
  __device__ __forceinline__ void finish(Consumer& c, Tile& r) {
    const WorkTileOf<C>& work = c.work_tile();
    const int first_row = c.first_row_of(work);
    const uint32_t tile = this->captured_.wait(c);
    this->template prepare_by_tile<C>(r.scores, tile, c.warp(), c.params, work, first_row,
                                      c.tile.first_key());
    this->captured_.release(c);
  }
  // The tile is gone.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void recompute(Consumer& c, Tile& r) const {
    const WorkTileOf<C>& work = c.work_tile();
    ReplacedScores<C>::Hook::prepare(r.scores, r, c.params, work, c.first_row_of(work),
                                     c.tile.first_key());
  }
};

// Scores begin with what the function adds, under the other warpgroups' products, and Q K^T is
// added to that.
template <Kernel C, class Score = AddedScore>
struct AddedScores : FunctionVerbs<C, ScoreOf16BitP<Score, C.shape.block_n, headroom_log2(C)>> {
  struct Registers : cuda::Pairs<C.shape.block_n / 2> {};
  using Hook = ScoreOf16BitP<Score, C.shape.block_n, headroom_log2(C)>;

  __device__ __forceinline__ explicit AddedScores(const ForwardParams& params)
      : FunctionVerbs<C, Hook>{Hook{Score(params)}} {}

  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(Consumer& c, Tile& r) const {
    const WorkTileOf<C>& work = c.work_tile();
    Hook::start(r.scores, c.params, work, c.first_row_of(work), c.tile.first_key());
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void finish(Consumer&, Tile&) const {}
  // To products that began with nothing.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void recompute(Consumer& c, Tile& r) const {
    const WorkTileOf<C>& work = c.work_tile();
    Hook::prepare(r.scores, r, c.params, work, c.first_row_of(work), c.tile.first_key());
  }
};

// By tiles of a captured tensor.
template <Kernel C>
struct AddedByTile : WithCapturedTiles<AddedScores<C>, C> {
  using WithCapturedTiles<AddedScores<C>, C>::WithCapturedTiles;

  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(Consumer& c, Tile& r) {
    const WorkTileOf<C>& work = c.work_tile();
    const int first_row = c.first_row_of(work), first_key = c.tile.first_key();
    const uint32_t tile = this->captured_.wait(c);
    this->template start_by_tile<C>(r.scores, tile, c.warp(), c.params, work, first_row, first_key);
    this->captured_.release(c);
  }
};

// By terms of keys, which a product multiplies (config/key_term.h).
template <Kernel C>
struct AddedKeyTerms : AddedScores<C> {
  using Tiles = KeyTermSmem<C>;
  template <class>
  using HelperOf = KeyTermWriter<C>;
  using AddedScores<C>::AddedScores;

  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(Consumer& c, Tile&) const {
    wait(c);
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void issue(const Consumer& c, Tile& r) const {
    const SmemAddresses<C> at = c.stages.at();
    const uint32_t zeros = key_term_zeros(at);
    ptx::wgmma_m64k16_ss<Element::kBf16, Major::kK, Major::kK>(
        r.scores, ones_descriptor(key_term_ones(at), zeros),
        key_term_descriptor(uniform(key_terms(at, state_.stage())), zeros), false);
  }
  template <class Consumer>
  __device__ __forceinline__ void release(const Consumer& c) {
    if (leads_warp()) key_term_pipeline(c.stages.at()).release(state_.stage());
    state_.advance();
  }
  template <class Consumer>
  __device__ __forceinline__ void pass_block(const Consumer& c) {
    wait(c);
    release(c);
  }

 private:
  template <class Consumer>
  __device__ __forceinline__ void wait(const Consumer& c) const {
    key_term_pipeline(c.stages.at()).wait_full(state_);
  }

  PipelineState<kKeyTermStages> state_;
};

// By the lines of a tile's rows, which wait in shared memory.
template <Kernel C>
struct AddedLineScores : AddedScores<C, ScoreWithLines> {
  using Numbers = AddedLinesSmem<C>;
  using AddedScores<C, ScoreWithLines>::AddedScores;

  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(const Consumer& c, const Work& work, uint32_t stage) {
    const int newest_key = (work.num_blocks - 1) * C.shape.block_n;
    if (work.num_blocks > 0) {
      this->template find<C>(lines(c), meet(c), references(c, stage), c.params, work,
                             c.first_row_of(work), newest_key);
    }
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(Consumer& c, Tile& r) const {
    ScoreWithLines::start(r.scores, lines(c), meet(c), c.work_tile(), c.tile.first_key());
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void recompute(Consumer& c, Tile& r) const {
    ScoreWithLines::add(r.scores, lines(c), c.work_tile(), c.tile.first_key());
  }
  // The LSE of what was added to the scores less a reference.
  template <class Consumer>
  __device__ __forceinline__ RowState with_references(const Consumer& c, uint32_t stage,
                                                      RowState rows) const {
    const float* const of_lane = references(c, stage) + thread_in_block() % kWarpSize / kQuadLanes;
    rows.ref[0] += of_lane[0] * kLog2E;
    rows.ref[1] += of_lane[kRowDistance] * kLog2E;
    return rows;
  }

 private:
  // The lines of the rows of this warp, where some of them meet, and what they are kept less, of a
  // work tile.
  template <class Consumer>
  static __device__ __forceinline__ LinesOfRow* lines(const Consumer& c) {
    return c.smem.score_numbers.rows + c.warp() * kRowsPerWarp;
  }
  template <class Consumer>
  static __device__ __forceinline__ KeySpan& meet(const Consumer& c) {
    return c.smem.score_numbers.meet[c.warp()];
  }
  template <class Consumer>
  static __device__ __forceinline__ float* references(const Consumer& c, uint32_t stage) {
    return c.smem.score_numbers.references[stage % kAddedReferences] + c.warp() * kRowsPerWarp;
  }
};

template <Kernel C>
using FunctionScores = std::conditional_t<
    kAddsToScore,
    std::conditional_t<
        kLoadsTile, AddedByTile<C>,
        std::conditional_t<kAddsKeyTerm, AddedKeyTerms<C>,
                           std::conditional_t<kAddsLines, AddedLineScores<C>, AddedScores<C>>>>,
    std::conditional_t<kLoadsTile, ReplacedByTile<C>, ReplacedScores<C>>>;

template <Kernel C>
requires(kHasScoreFunction) struct ScoresOf<C> : FunctionScores<C> {
  using FunctionScores<C>::FunctionScores;
};

}  // namespace fa3::hopper
