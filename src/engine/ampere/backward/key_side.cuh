// SPDX-License-Identifier: Apache-2.0
// The keys' side: four warps that compute dP and, from P, dS of a quarter of the keys each, and sum
// dK = dS^T Q; and their part of dQ, a step behind.
#pragma once

#include "engine/ampere/backward/query_gradient.cuh"
#include "engine/ampere/backward/score_block.cuh"
#include "engine/ampere/backward/store_rows.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/ampere/backward/function_block.cuh"
#endif

namespace fa3::ampere {

template <BackwardConfig C>
class KeySide {
 public:
  __device__ __forceinline__ KeySide(const BackwardParams& params, const KeyBlockWork& work,
                                     uint32_t smem)
      : params_(params), work_(work), smem_(smem) {}

  __device__ __forceinline__ void run() {
    const int warp = int(thread_in_block()) / kWarpSize % kWarpsOfSide;
    const int own_keys = warp * C.keys_of_warp();
    const RowsFirst<C.v_tile()> v(smem_ + Smem::kV, own_keys);
    float dk[C.row_tiles()][C.head_dim / 8][4] = {};
    QueryBlock<C> now = QueryBlock<C>::first(params_, work_), before = now;
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < work_.num_steps; ++step) {
      if (step > 0) add_dq<C, Side::kKeys>(params_, work_, smem_, before, [](int) {});
      // All warps of this side have read dS when they pass here.
      bar_sync(int(BackwardBarrier::kLoaded) + stage, kBackwardThreads);
      const uint32_t q = smem_ + uint32_t(Smem::q(0) + stage * C.stage_bytes());
      typename Block::Packed ds;
      {
        typename Block::Scores dp;
        multiply_abt<C.element, C.head_dim_v>(
            dp, v, ChunksFirst<C.d_o_tile()>(q + uint32_t(C.q_tile().bytes()), 0));
        bar_sync(int(BackwardBarrier::kPFull), kBackwardThreads);
        const uint32_t delta = smem_ + uint32_t(Smem::delta(0) + stage * C.statistics_bytes());
#ifdef FA3_SCORE_FUNCTION
        FunctionBlock<C>::differentiate(
            ds, dp, smem_ + Smem::kP, delta, smem_ + Smem::kSlopes, params_.score,
            {work_.keys.sequence, now.head, work_.first_key + own_keys, now.m_block * C.block_m});
#else
        Block::differentiate(ds, dp, smem_ + Smem::kP, delta, params_.dropout.keeps);
#endif
      }
      if (kApart && step + 1 < work_.num_steps) {
        bar_arrive(int(BackwardBarrier::kPEmpty), kBackwardThreads);
      }
      if (kApart && step > 0) bar_sync(int(BackwardBarrier::kDsRead), kBackwardThreads);
      Block::store_ds(smem_ + Smem::kDs, own_keys, ds);
      add_ab<C.element, C.block_m>(dk, ds, RowsFirst<C.q_tile()>(q, 0));
      bar_arrive(int(BackwardBarrier::kSpent) + stage, kBackwardThreads);
      bar_sync(int(BackwardBarrier::kKeys), kThreadsOfSide);
      before = now;
      now.advance(params_, work_);
      if (++stage == C.stages) stage = 0;
    }
    if (work_.num_steps > 0) add_dq<C, Side::kKeys>(params_, work_, smem_, before, [](int) {});
    store(dk, own_keys);
  }

 private:
  using Smem = BackwardSmem<C>;
  using Block = ScoreBlock<C>;
  static constexpr bool kApart = sides_run_apart(C);

  __device__ __forceinline__ void store(const float (&dk)[C.row_tiles()][C.head_dim / 8][4],
                                        int first) const {
    const float scale = work_.keys.used == 1 ? params_.scale_of_one_key : params_.scale;
#pragma unroll
    for (int i = 0; i < C.row_tiles(); ++i) {
      store_rows<C.element>(params_.dk, work_.keys, work_.first_key + first + i * kRowsPerWarp,
                            dk[i], scale, [](int block) { return block * 8; });
    }
  }

  const BackwardParams& params_;
  const KeyBlockWork& work_;
  const uint32_t smem_;
};

}  // namespace fa3::ampere
