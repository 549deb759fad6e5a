// SPDX-License-Identifier: Apache-2.0
// The values' side: four warps that recompute S and P of a quarter of the keys each, hand P over,
// and sum dV = P^T dO. They also load Q and dO for both sides, and are up to a step ahead; with
// their part of dQ two steps behind.
#pragma once

#include <utility>

#include "engine/ampere/backward/query_gradient.cuh"
#include "engine/ampere/backward/score_block.cuh"
#include "engine/ampere/backward/store_rows.cuh"
#include "engine/ampere/tile/copy_rows.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/ampere/backward/function_block.cuh"
#endif

namespace fa3::ampere {

template <BackwardConfig C>
class ValueSide {
 public:
  __device__ __forceinline__ ValueSide(const BackwardParams& params, const KeyBlockWork& work,
                                       uint32_t smem)
      : params_(params),
        work_(work),
        smem_(smem),
        next_(QueryBlock<C>::first(params, work)),
        late_(next_) {}

  // The first stages; with a group of copies for each.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int stage = 0; stage < C.stages; ++stage) {
      if (stage < work_.num_steps) load_next(stage);
      cp_async_commit_group();
    }
  }

  __device__ __forceinline__ void run() {
    const int warp = int(thread_in_block()) / kWarpSize;
    const int first_key = work_.first_key + warp * C.keys_of_warp();
    const KeyRangeOf<int> unmasked = unmasked_queries(work_.extents, first_key, C.keys_of_warp());
    const RowsFirst<C.k_tile()> k(smem_ + Smem::kK, warp * C.keys_of_warp());
    float dv[C.row_tiles()][C.head_dim_v / 8][4] = {};
    Dropouts dropouts(params_, first_key);
    QueryBlock<C> now = QueryBlock<C>::first(params_, work_);
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < work_.num_steps; ++step) {
      if (step >= kLag) catch_up(step);
      wait_for_copies(step);
      bar_sync(int(BackwardBarrier::kValues), kThreadsOfSide);
      bar_arrive(int(BackwardBarrier::kLoaded) + stage, kBackwardThreads);

      typename Block::Scores scores;
      typename Block::Packed p;
      multiply_abt<C.element, C.head_dim>(scores, k, ChunksFirst<C.q_tile()>(q(stage), 0));
      const int first_row = now.m_block * C.block_m;
      if constexpr (C.scored) Block::prepare(scores, params_);
      if (first_row < unmasked.begin || first_row + C.block_m > unmasked.end) {
        Block::mask(scores, work_.extents, first_key, first_row);
      }
      if constexpr (C.block_mask) {
        if (now.bits != nullptr) Block::hide(scores, now.bits, first_key, first_row);
      }
      const uint32_t lse = smem_ + uint32_t(Smem::lse(0) + stage * C.statistics_bytes());
      if constexpr (C.scored) {
        dropouts.set_head(work_.keys.sequence, now.head);
        if (kApart && step > 0) bar_sync(int(BackwardBarrier::kPEmpty), kBackwardThreads);
        Block::exponentiate_scored(p, scores, lse, params_, dropouts.of_tile, smem_ + Smem::kP,
                                   first_row);
      } else {
#ifdef FA3_SCORE_FUNCTION
        if (kApart && step > 0) bar_sync(int(BackwardBarrier::kPEmpty), kBackwardThreads);
        FunctionBlock<C>::exponentiate(p, scores, lse, params_.score,
                                       {work_.keys.sequence, now.head, first_key, first_row},
                                       smem_ + Smem::kP, smem_ + Smem::kSlopes);
#else
        Block::exponentiate(p, scores, lse, params_.scale_log2);
        if (kApart && step > 0) bar_sync(int(BackwardBarrier::kPEmpty), kBackwardThreads);
        Block::store(smem_ + Smem::kP, p);
#endif
      }
      bar_arrive(int(BackwardBarrier::kPFull), kBackwardThreads);
      add_ab<C.element, C.block_m>(dv, p, RowsFirst<C.d_o_tile()>(d_o(stage), 0));
      now.advance(params_, work_);
      if (++stage == C.stages) stage = 0;
    }
#pragma unroll 1
    for (int step = max(work_.num_steps, kLag); step < work_.num_steps + kLag; ++step) {
      wait_for_spent(step);
      add_late_dq(step, [](int) {});
    }
    store(dv, warp * C.keys_of_warp());
  }

 private:
  using Smem = BackwardSmem<C>;
  using Block = ScoreBlock<C>;
  static constexpr bool kApart = sides_run_apart(C);
  static constexpr int kLag = kApart ? 2 : 1;  // steps, from which dQ is multiplied

  // Draws of the warp's keys, 16 at a time; nothing in kernels without.
  struct NoDropouts {
    __device__ __forceinline__ NoDropouts(const BackwardParams&, int) {}
  };
  struct SomeDropouts {
    KeyDropout of_tile[C.row_tiles()];
    __device__ __forceinline__ SomeDropouts(const BackwardParams& p, int first_key)
        : SomeDropouts(p, first_key, std::make_integer_sequence<int, C.row_tiles()>()) {}
    template <int... I>
    __device__ __forceinline__ SomeDropouts(const BackwardParams& p, int first_key,
                                            std::integer_sequence<int, I...>)
        : of_tile{KeyDropout(p.dropout, first_key + I * kRowsPerWarp)...} {}
    __device__ __forceinline__ void set_head(int sequence, int head) {
#pragma unroll
      for (KeyDropout& d : of_tile) d.set_head(sequence, head);
    }
  };
  using Dropouts = std::conditional_t<C.scored, SomeDropouts, NoDropouts>;

  __device__ __forceinline__ uint32_t q(int stage) const {
    return smem_ + uint32_t(Smem::q(0) + stage * C.stage_bytes());
  }
  __device__ __forceinline__ uint32_t d_o(int stage) const {
    return q(stage) + uint32_t(C.q_tile().bytes());
  }

  // The next block's Q, dO, LSE and Delta.
  __device__ __forceinline__ void load_next(int stage) {
    const int first_row = next_.m_block * C.block_m, rows = work_.extents.seqlen_q - first_row;
    const int row = work_.q_begin + first_row;
    copy_block<C.q_tile(), kThreadsOfSide>(q(stage), params_.q, work_.q_batch, next_.head, row,
                                           rows);
    copy_block<C.d_o_tile(), kThreadsOfSide>(d_o(stage), params_.d_o, work_.q_batch, next_.head,
                                             row, rows);
    load_statistics(stage);
    next_.advance(params_, work_);
  }
  __device__ __forceinline__ void load_statistics(int stage) {
    const int thread = int(thread_in_block());
    constexpr int kVectors = C.block_m / 4;
    if (thread < 2 * kVectors) {
      const QueryScratch& scratch = params_.rows.scratch;
      const int64_t first =
          scratch.numbers.block(work_.scratch, next_.head, next_.m_block) * C.block_m;
      const float* const from = thread < kVectors ? scratch.lse_log2 : scratch.delta;
      cp_async_16(smem_ + uint32_t(Smem::lse(0) + stage * C.statistics_bytes() + thread * 16),
                  from + first + thread % kVectors * 4, true);
    }
  }

  // What the keys' side has left behind: a stage that it has read, which is filled again, and dS of
  // that step. The product hides the copies' latency.
  __device__ __forceinline__ void catch_up(int step) {
    const int next = step + C.stages - kLag;
    wait_for_spent(step);
    if constexpr (kApart) {
      if (next < work_.num_steps && next_is_plain()) {
        load_next_under_dq(step, next % C.stages);
        return;
      }
    }
    if (next < work_.num_steps) load_next(next % C.stages);
    cp_async_commit_group();
    add_late_dq(step, [](int) {});
  }
  __device__ __forceinline__ static void wait_for_spent(int step) {
    bar_sync(int(BackwardBarrier::kSpent) + (step - kLag) % C.stages, kBackwardThreads);
  }
  // meanwhile: of add_dq().
  template <class Meanwhile>
  __device__ __forceinline__ void add_late_dq(int step, const Meanwhile& meanwhile) {
    add_dq<C, Side::kValues>(params_, work_, smem_, late_, meanwhile);
    late_.advance(params_, work_);
    if (kApart && step - kLag + 1 < work_.num_steps) {
      bar_arrive(int(BackwardBarrier::kDsRead), kBackwardThreads);
    }
  }

  // Whether all of the next block's chunks exist.
  __device__ __forceinline__ bool next_is_plain() const {
    return params_.q.in_chunks && params_.d_o.in_chunks && params_.q.tensor.columns == C.head_dim &&
           params_.d_o.tensor.columns == C.head_dim_v &&
           (next_.m_block + 1) * C.block_m <= work_.extents.seqlen_q;
  }

  // Copies between the products of dQ's first steps, under which the tensor cores work. Not with
  // one stage, which the next step waits for.
  __device__ __forceinline__ void load_next_under_dq(int step, int stage) {
    const int row = work_.q_begin + next_.m_block * C.block_m;
    const int64_t q_stride = params_.q.tensor.strides.row;
    const int64_t d_o_stride = params_.d_o.tensor.strides.row;
    using Q = WholeTile<C.q_tile(), kThreadsOfSide>;
    using DO = WholeTile<C.d_o_tile(), kThreadsOfSide>;
    const Q q_copies(q(stage), params_.q.tensor.at(work_.q_batch, next_.head, row), q_stride);
    const DO d_o_copies(d_o(stage), params_.d_o.tensor.at(work_.q_batch, next_.head, row),
                        d_o_stride);
    load_statistics(stage);
    next_.advance(params_, work_);
    constexpr int kParts = 2;  // of at least four steps
    constexpr int kEach = (Q::kCopies + kParts - 1) / kParts;
    static_assert(DO::kCopies <= Q::kCopies);
    add_late_dq(step, [&](int part) {
#pragma unroll
      for (int i = part * kEach; i < (part + 1) * kEach; ++i) {
        if (i < Q::kCopies) q_copies.copy(i, params_.q.tensor.strides.row);
        if (i < DO::kCopies) d_o_copies.copy(i, params_.d_o.tensor.strides.row);
      }
      if (part == kParts - 1) cp_async_commit_group();
    });
  }

  // At the first step all stages but one may be on their way, later one less.
  __device__ __forceinline__ static void wait_for_copies(int step) {
    if (step == 0) {
      cp_async_wait_group<C.stages - 1>();
    } else {
      cp_async_wait_group<(C.stages > 2 ? C.stages - 2 : 0)>();
    }
  }

  __device__ __forceinline__ void store(const float (&dv)[C.row_tiles()][C.head_dim_v / 8][4],
                                        int first) const {
    const float scale = C.scored ? params_.dropout.scale : 1.0f;
#pragma unroll
    for (int i = 0; i < C.row_tiles(); ++i) {
      store_rows<C.element>(params_.dv, work_.keys, work_.first_key + first + i * kRowsPerWarp,
                            dv[i], scale, [](int block) { return block * 8; });
    }
  }

  const BackwardParams& params_;
  const KeyBlockWork& work_;
  const uint32_t smem_;
  QueryBlock<C> next_;  // to be loaded
  QueryBlock<C> late_;  // of which dQ is multiplied next
};

}  // namespace fa3::ampere
