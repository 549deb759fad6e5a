// SPDX-License-Identifier: Apache-2.0
// The terms of a block's keys (key_term.h), computed once for all of a tile's queries: by the warps
// of the producer's warpgroup that load nothing, ahead of the consumers. Next: producer.cuh.
#pragma once

#include "engine/cuda/lists/block_list.h"
#include "engine/cuda/softmax/score_function.cuh"
#include "engine/hopper/forward/consumer/score/score_smem.cuh"
#include "engine/hopper/forward/producer/kv_loader.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// One of the warps, which has each third part of 32 keys. Heads are not packed in a kernel with a
// score function, so a tile has one.
template <Kernel C>
class KeyTermWriter {
 public:
  __device__ __forceinline__ KeyTermWriter(const ForwardParams& params, SmemPlan<C>& smem,
                                           SmemAddresses<C> at, int warp)
      : params_(params), smem_(smem), at_(at), thread_(warp * kWarpSize + ptx::lane()) {}

  static_assert(std::is_same_v<typename KvLoaderOf<C>::Helper, NoHelper>);
  static __device__ __forceinline__ bool takes_part(const ForwardParams&) { return true; }
  static __device__ __forceinline__ void init_pipelines(SmemAddresses<C> at, int consumers) {
    at.kv_pipeline().init(consumers);
    key_term_pipeline(at).init(consumers, kHelperWarps * ptx::kArrivalsOfWarp);
  }

  __device__ __forceinline__ void run() {
    write_constants();
    while (next_tile()) {
#pragma unroll 1
      for (int block = blocks_ - 1; block >= 0; --block) write(block);
    }
  }

 private:
  static constexpr int kThreads = kHelperWarps * kWarpSize;

  // Their readers wait for the first terms.
  __device__ __forceinline__ void write_constants() const {
    for (int row = thread_; row < C.shape.block_n; row += kThreads) {
      write_row(key_term_zeros(at_), row, {0, 0});
    }
    if (thread_ < kCoreMatrixBytes / kKeyTermRowBytes) {
      write_row(key_term_ones(at_), thread_, kKeyTermOnes);
    }
  }

  // False: there is none.
  __device__ __forceinline__ bool next_tile() {
    at_.work_tile_pipeline().wait_full(work_tile_);
    const WorkTileOf<C>& work = smem_.work_tiles[work_tile_.stage()];
    blocks_ = work.num_blocks;
    if (blocks_ > 0) {
      keys_ = keys_of<C>(params_, work);
      head_ = work.queries.pack;
    }
    __syncwarp();  // every lane has read
    if (leads_warp()) at_.work_tile_pipeline().release(work_tile_.stage());
    work_tile_.advance();
    return blocks_ > 0;
  }

  __device__ __forceinline__ void write(int block) {
    const int at = block * C.shape.block_n;
    const int first_key = C.block_mask() ? cuda::listed_key(keys_.listed, at) : keys_.first + at;
    key_term_pipeline(at_).wait_empty(terms_);
    const uint32_t stage = key_terms(at_, terms_.stage());
    const ScoreFunction function{params_.score.captures};
#pragma unroll 1
    for (int row = thread_; row < C.shape.block_n; row += kThreads) {
      const float term = function.added({}, keys_.sequence, head_, 0, first_key + row);
      write_row(stage, row, key_term_words(bounded_term(term * params_.score.inverse_scale)));
    }
    ptx::fence_proxy_async();  // wgmma reads what these threads have stored
    __syncwarp();
    if (leads_warp()) ptx::mbarrier_arrive(key_term_pipeline(at_).full(terms_.stage()));
    terms_.advance();
  }

  static __device__ __forceinline__ void write_row(uint32_t operand, int row, KeyTermWords words) {
    const uint32_t all[4] = {words.first, words.second, 0, 0};
    ptx::st_shared_b32x4(operand + row * kKeyTermRowBytes, all);
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const int thread_;
  int blocks_ = 0;
  int head_ = 0;
  TileKeys keys_{};
  WorkTileState work_tile_;
  PipelineState<kKeyTermStages> terms_;
};

}  // namespace fa3::hopper
