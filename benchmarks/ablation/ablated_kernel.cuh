// SPDX-License-Identifier: Apache-2.0
// The tutorial kernel (tutorial/plain_kernel.cuh) with one idea switched off or on at a time:
//
//   Lag          which V a step multiplies: 0, that of its own keys, when their softmax has ended;
//   1,
//                that of the step before, under this step's softmax (as the tutorial); 2, that of
//                two steps before, and the next step's Q K^T too (the paper's three-stage pipeline)
//   Producer     a warpgroup that only loads; without it a thread of the first consumer does
//   PingPong     warpgroups take turns to issue their products
//   Reallocates  the producer gives registers to the consumers
//
// Two blocks of keys or more. Who waits for whom is the tutorial's protocol.
#pragma once

#include "engine/hopper/tutorial/plain_kernel.cuh"

namespace fa3::hopper {

template <Element E, int HeadDim, int BlockN, int Stages, int Lag, bool Producer, bool PingPong_,
          bool Reallocates>
class Ablated : public PlainForward<E, HeadDim, BlockN, Stages> {
  using Base = PlainForward<E, HeadDim, BlockN, Stages>;
  using Base::blocks_, Base::cursor_, Base::kv_pipeline_, Base::next_full, Base::p_, Base::q_,
      Base::q_pipeline_, Base::release, Base::stage, Base::tile_, Base::weigh;
  using typename Base::Cursor;
  static_assert(Producer || (Stages >= 4 && Lag < 2));  // a step's two stages, and the next's

 public:
  static constexpr int kThreads = (Producer + Base::kConsumers) * kWarpgroupSize;

  using Base::Base;
  // Base's, under names that gcc 12 can take for the array of PFragment.
  static constexpr tile::TileLayout kQ{Base::kBlockM, HeadDim}, kKv{BlockN, HeadDim};

  __device__ __forceinline__ void produce() {
    load_q();
    for (int step = 0; step < num_blocks() + Lag; ++step) load_step(step);
  }

  __device__ __forceinline__ void consume(int warpgroup) {
    RowState rows;
    tile::PFragment<kKv> p;
    float output[HeadDim / 2] = {};
    first_row_ = this->Base::first_row_ + warpgroup * kRowsPerWarpgroup;
    rows_of_q_ = tile::k_major_low(q_ + uint32_t(warpgroup * kRowsPerWarpgroup * kQ.row_bytes()));
    if (!Producer && threadIdx.x == 0) {
      load_q();
      load_step(0);
    }
    q_pipeline_.wait_full({});
    if constexpr (Lag == 0) one_after_the_other(p, output, rows);
    if constexpr (Lag == 1) two_stages(p, output, rows, PingPong<2, PingPong_>(warpgroup));
    if constexpr (Lag == 2) three_stages(p, output, rows);
    const int warp = int(thread_in_block() % kWarpgroupSize) / kWarpSize;
    store_rows<E>(p_.output, {tile_.batch, tile_.pack, 0, p_.seqlen_q},
                  first_row_ + warp * kRowsPerWarp, output, rows);
  }

 private:
  using Scores = float[BlockN / 2];
  using Output = float[HeadDim / 2];
  using P = tile::PFragment<kKv>;

  __device__ __forceinline__ int num_blocks() const { return blocks_.end - blocks_.first; }
  __device__ __forceinline__ int block_of(int step) const { return blocks_.end - 1 - step; }

  // ---- One thread loads ----

  __device__ __forceinline__ void load_q() const {
    tile::load_rows(p_.q_map, kQ, Base::kBlockM, q_, q_pipeline_.full(0),
                    {0, this->Base::first_row_, tile_.pack, tile_.batch});
  }

  __device__ __forceinline__ void load(const CUtensorMap& map, int block) {
    kv_pipeline_.wait_empty(loads_);
    tile::load_rows(map, kKv, BlockN, stage(loads_), kv_pipeline_.full(loads_.stage()),
                    {0, block * BlockN, tile_.pack / p_.heads_per_kv_head, tile_.batch});
    loads_.advance();
  }

  // What a step multiplies, in that order.
  __device__ __forceinline__ void load_step(int step) {
    if (step < num_blocks()) load(p_.k_map, block_of(step));
    if (step >= Lag && step - Lag < num_blocks()) load(p_.v_map, block_of(step - Lag));
  }

  // ---- A warpgroup multiplies ----

  __device__ __forceinline__ void begin_step(int step) {
    if constexpr (!Producer) {
      if (threadIdx.x == 0) load_step(step + 1);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void issue_scores(Scores& scores, Cursor k) const {
    ptx::wgmma_fence();
    tile::issue_abt<E, kQ, kKv>(scores, rows_of_q_, tile::k_major_low(stage(k)));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_output(Output& output, P& p, Cursor v) const {
    ptx::wgmma_fence();
    tile::issue_ab<E, kKv>(output, p, tile::mn_major_low(kKv, stage(v)));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ static void rescale(Output& output, const StepResult& step) {
#pragma unroll
    for (int i = 0; i < HeadDim / 2; ++i) output[i] *= step.rescale[fragment_row_index(i)];
  }

  __device__ __forceinline__ void one_after_the_other(P& p, Output& output, RowState& rows) {
    Scores scores;
    for (int step = 0; step < num_blocks(); ++step) {
      begin_step(step);
      const Cursor k = next_full();
      issue_scores(scores, k);
      ptx::wgmma_wait_group<0>();
      release(k);
      rescale(output, weigh(scores, rows, first_row_, block_of(step)));
      Base::pack(scores, p);
      last_product(p, output);
    }
  }

  __device__ __forceinline__ void last_product(P& p, Output& output) {
    const Cursor v = next_full();
    issue_output(output, p, v);
    ptx::wgmma_wait_group<0>();
    release(v);
  }

  template <class Turns>
  __device__ __forceinline__ void two_stages(P& p, Output& output, RowState& rows, Turns turns) {
    Scores scores;
    turns.open();
    begin_step(0);
    const Cursor first = next_full();
    turns.wait();
    issue_scores(scores, first);
    turns.pass();
    ptx::wgmma_wait_group<0>();
    release(first);
    weigh(scores, rows, first_row_, block_of(0));
    Base::pack(scores, p);
    for (int step = 1; step < num_blocks(); ++step) {
      begin_step(step);
      const Cursor k = next_full(), v = next_full();
      turns.wait();
      issue_scores(scores, k);
      issue_output(output, p, v);
      turns.pass();
      ptx::wgmma_wait_group<1>();
      release(k);
      const StepResult weighed = weigh(scores, rows, first_row_, block_of(step));
      ptx::wgmma_wait_group<0>();
      release(v);
      rescale(output, weighed);
      Base::pack(scores, p);
    }
    last_product(p, output);
    turns.close();
  }

  // Scores of a step are multiplied while those of the step before become P, and P V of the one
  // before that is summed.
  __device__ __forceinline__ void three_stages(P& p, Output& output, RowState& rows) {
    Scores even, odd;
    const Cursor first = next_full();
    issue_scores(even, first);
    ptx::wgmma_wait_group<0>();
    release(first);
    overlapped<false>(even, odd, p, output, rows, 1);
    int step = 2;
    for (; step + 1 < num_blocks(); step += 2) {
      overlapped<true>(odd, even, p, output, rows, step);
      overlapped<true>(even, odd, p, output, rows, step + 1);
    }
    if (step < num_blocks()) {
      overlapped<true>(odd, even, p, output, rows, step);
      last_rows(even, p, output, rows);
    } else {
      last_rows(odd, p, output, rows);
    }
  }

  // scores: of the step before.
  template <bool HasP>
  __device__ __forceinline__ void overlapped(Scores& scores, Scores& next, P& p, Output& output,
                                             RowState& rows, int step) {
    const Cursor k = next_full();
    issue_scores(next, k);
    Cursor v{};
    if constexpr (HasP) {
      v = next_full();
      issue_output(output, p, v);
    }
    const StepResult weighed = weigh(scores, rows, first_row_, block_of(step - 1));
    ptx::wgmma_wait_group<0>();
    release(k);
    if constexpr (HasP) release(v);
    rescale(output, weighed);
    Base::pack(scores, p);
  }

  __device__ __forceinline__ void last_rows(Scores& scores, P& p, Output& output, RowState& rows) {
    const Cursor v = next_full();
    issue_output(output, p, v);
    const StepResult weighed = weigh(scores, rows, first_row_, blocks_.first);
    ptx::wgmma_wait_group<0>();
    release(v);
    rescale(output, weighed);
    Base::pack(scores, p);
    last_product(p, output);
  }

  Cursor loads_;        // the next stage that is loaded
  int first_row_;       // of the warpgroup
  uint32_t rows_of_q_;  // its rows of Q in shared memory
};

template <Element E, int HeadDim, int BlockN, int Stages, int Lag, bool Producer, bool PingPong_,
          bool Reallocates>
__global__ void __launch_bounds__(
    Ablated<E, HeadDim, BlockN, Stages, Lag, Producer, PingPong_, Reallocates>::kThreads, 1)
    ablated_kernel(const __grid_constant__ PlainParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  Ablated<E, HeadDim, BlockN, Stages, Lag, Producer, PingPong_, Reallocates> forward(
      params, uniform(ptx::cvta_to_shared(raw_smem)));
  if (threadIdx.x == 0) forward.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / kWarpSize));
  const int warpgroup = warp / kWarpsPerWarpgroup;
  if (Producer && warpgroup == 0) {
    if constexpr (Reallocates) ptx::setmaxnreg_dec<40>();
    if (warp == 0 && ptx::elect_sync()) forward.produce();
  } else {
    if constexpr (Producer && Reallocates) ptx::setmaxnreg_inc<232>();
    forward.consume(warpgroup - Producer);
  }
}

}  // namespace fa3::hopper
