// SPDX-License-Identifier: Apache-2.0
// FlashAttention-3's forward on one page, to be read before forward_kernel.cuh: the paper's
// Algorithm 1 (one warpgroup loads, two compute) with the two stages of Algorithm 2 (softmax of a
// key block under P V of the block before). A CTA has one tile: 128 query rows of one head. For
// each block of keys, from the last to the first:
//
//   S = Q K^T                on tensor cores                                        tile::issue_abt
//   P = 2^(c S - ref)        c = scale * log2(e); ref: the row's maximum so far       online_step
//   O = rescale * O + P V    rescale = 2^(old ref - ref), also of the sum of P       tile::issue_ab
//
// and at the end O / sum and the log-sum-exp (store_rows). The splits are the library's; no call of
// it runs this kernel. The library's own adds CTAs that go from tile to tile (tile_scheduler.cuh),
// warpgroups that take turns (pipeline/pipeline.cuh), query heads packed into one tile (PackGqa in
// cuda/tile/rows.h), blocks that a warpgroup skips (cuda/mask/row_blocks.h), and softmax steps
// without a maximum (guarded_step in cuda/softmax/softmax.cuh). tests/cuda/forward_check.cpp holds
// this one to float64, tests/cpp/engine/hopper/tutorial/protocol_test.cpp watches its barriers.
#pragma once

#include <cstddef>

#include "core/mask/key_blocks.h"
#include "engine/cuda/mask/row_blocks.h"
#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/cuda/softmax/score.cuh"
#include "engine/cuda/tile/tile_order.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

struct PlainParams {
  CUtensorMap q_map, k_map, v_map;  // descriptions of the tensors, for TMA
  ForwardOutput output;
  TileOrder order;  // which tile CTA i has
  int heads_per_kv_head;
  int seqlen_q, seqlen_k;
  MaskRuleOf<int> mask;
  float scale_log2;  // softmax scale * log2(e)
};

template <Element E, int HeadDim, int BlockN, int Stages = 4>
class PlainForward {
 public:
  static constexpr int kBlockM = 128;
  static constexpr int kConsumers = kBlockM / kRowsPerWarpgroup;
  static constexpr int kConsumerWarps = kConsumers * kWarpsPerWarpgroup;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroupSize;
  static constexpr int kStages = Stages;  // of K and V, which take turns
  static constexpr tile::TileLayout kQ{kBlockM, HeadDim}, kKv{BlockN, HeadDim};

  struct Smem {
    alignas(kSmemAlignment) unsigned char q[kQ.bytes()];
    alignas(kSmemAlignment) unsigned char kv[kStages][kKv.bytes()];
    PipelineBarriers<1> q_pipeline;
    PipelineBarriers<kStages> kv_pipeline;
  };
  static_assert(sizeof(Smem) <= kMaxSmemBytes);

  // `smem`: the address of Smem.
  __device__ __forceinline__ PlainForward(const PlainParams& params, uint32_t smem)
      : p_(params),
        q_(smem + offsetof(Smem, q)),
        kv_(smem + offsetof(Smem, kv)),
        q_pipeline_{smem + uint32_t{offsetof(Smem, q_pipeline)}},
        kv_pipeline_{smem + uint32_t{offsetof(Smem, kv_pipeline)}},
        tile_(params.order.tile(int(blockIdx.x))),
        first_row_(tile_.m_block * kBlockM) {
    const int end = first_row_ + kBlockM;
    blocks_ = visited_blocks(block_range(mask(), first_row_, end < p_.seqlen_q ? end : p_.seqlen_q,
                                         p_.seqlen_q, p_.seqlen_k),
                             BlockN);
  }

  // One thread, before everything else.
  __device__ __forceinline__ void init_barriers() const {
    q_pipeline_.init(kConsumerWarps);
    kv_pipeline_.init(kConsumerWarps);
    ptx::fence_mbarrier_init();
  }

  // One thread. TMA says itself when bytes have arrived; here only free stages are waited
  // for. The order is that of use: a block's K is multiplied together with V of the block before.
  __device__ __forceinline__ void produce() {
    const int head = tile_.pack, kv_head = head / p_.heads_per_kv_head;
    tile::load_rows(p_.q_map, kQ, kBlockM, q_, q_pipeline_.full(0),
                    {0, first_row_, head, tile_.batch});
    const auto load = [&](const CUtensorMap& map, int block) {
      kv_pipeline_.wait_empty(cursor_);
      tile::load_rows(map, kKv, BlockN, stage(cursor_), kv_pipeline_.full(cursor_.stage()),
                      {0, block * BlockN, kv_head, tile_.batch});
      cursor_.advance();
    };
    load(p_.k_map, blocks_.end - 1);
    for (int block = blocks_.end - 2; block >= blocks_.first; --block) {
      load(p_.k_map, block);
      load(p_.v_map, block + 1);
    }
    load(p_.v_map, blocks_.first);
  }

  // A warpgroup, for 64 of the rows: Algorithm 2.
  __device__ __forceinline__ void consume(int warpgroup) {
    float scores[BlockN / 2];  // a thread's share: fragment.h
    tile::PFragment<kKv> p;
    float output[HeadDim / 2] = {};
    RowState rows;  // reference and sum
    const int first_row = first_row_ + warpgroup * kRowsPerWarpgroup;
    const uint32_t q =
        tile::k_major_low(q_ + uint32_t(warpgroup * kRowsPerWarpgroup * kQ.row_bytes()));

    q_pipeline_.wait_full({});
    const Cursor first = next_full();
    ptx::wgmma_fence();
    tile::issue_abt<E, kQ, kKv>(scores, q, tile::k_major_low(stage(first)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    release(first);
    weigh(scores, rows, first_row, blocks_.end - 1);
    pack(scores, p);

    for (int block = blocks_.end - 2; block >= blocks_.first; --block) {
      const Cursor k = next_full(), v = next_full();
      ptx::wgmma_fence();
      tile::issue_abt<E, kQ, kKv>(scores, q, tile::k_major_low(stage(k)));
      ptx::wgmma_commit_group();
      tile::issue_ab<E, kKv>(output, p, tile::mn_major_low(kKv, stage(v)));
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();  // the scores are there, P V of the block before is at work
      release(k);
      const StepResult step = weigh(scores, rows, first_row, block);
      ptx::wgmma_wait_group<0>();
      release(v);
#pragma unroll
      for (int i = 0; i < HeadDim / 2; ++i) output[i] *= step.rescale[fragment_row_index(i)];
      pack(scores, p);
    }

    const Cursor last = next_full();
    ptx::wgmma_fence();
    tile::issue_ab<E, kKv>(output, p, tile::mn_major_low(kKv, stage(last)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    const int warp = int(thread_in_block() % kWarpgroupSize) / kWarpSize;
    store_rows<E>(p_.output, {tile_.batch, tile_.pack, 0, p_.seqlen_q},
                  first_row + warp * kRowsPerWarp, output, rows);
  }

 protected:
  __device__ __forceinline__ ScoreOf16BitP<ScaledScore, BlockN> score() const {
    return {{p_.scale_log2}};
  }

  using Cursor = PipelineState<kStages>;

  // Online softmax: scores become P, sums and references follow. The output does when the
  // product that is at work on it has ended.
  __device__ __forceinline__ StepResult weigh(float (&scores)[BlockN / 2], RowState& rows,
                                              int first_row, int block) const {
    if (block < blocks_.masked_below || block >= blocks_.masked_from) {
      hide(scores, first_row, block * BlockN);
    }
    StepResult step;
    online_step(scores, rows, score(), step);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rows.sum[r] = rows.sum[r] * step.rescale[r] + step.block_sum[r];
    }
    return step;
  }

  // Without chunks.
  __device__ __forceinline__ MaskRuleOf<int> mask() const {
    return {p_.mask.left, p_.mask.right};
  }

  // Scores of keys that a row must not see become -inf: core/mask/mask_rule.h says which. Keys
  // beyond the sequence are among them; TMA has written zeros there.
  __device__ __forceinline__ void hide(float (&scores)[BlockN / 2], int first_row,
                                       int first_key) const {
    const int thread = int(thread_in_block() % kWarpgroupSize);
    const int row = first_row + fragment_row(thread);
    const int key = first_key + fragment_lane_column(thread);
#pragma unroll
    for (int i = 0; i < BlockN / 2; ++i) {
      const bool visible = mask().visible(row + fragment_row_index(i) * kRowDistance,
                                          key + fragment_column(i), p_.seqlen_q, p_.seqlen_k);
      if (!visible) scores[i] = -kInfinity;
    }
  }

  // A thread's accumulators of S, rounded in pairs, are just what P V wants from it as its left
  // operand.
  __device__ __forceinline__ static void pack(const float (&scores)[BlockN / 2],
                                              tile::PFragment<kKv>& p) {
#pragma unroll
    for (int i = 0; i < BlockN / 4; ++i) {
      p[i / 4][i % 4] = pack_pair<E>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ __forceinline__ uint32_t stage(Cursor at) const {
    return kv_ + at.stage() * kKv.bytes();
  }
  __device__ __forceinline__ Cursor next_full() {
    const Cursor at = cursor_;
    cursor_.advance();
    kv_pipeline_.wait_full(at);
    return at;
  }
  __device__ __forceinline__ void release(Cursor at) const {
    if (threadIdx.x % kWarpSize == 0) kv_pipeline_.release(at.stage());
  }

  const PlainParams& p_;
  const uint32_t q_, kv_;  // addresses in shared memory
  const Pipeline<1> q_pipeline_;
  const Pipeline<kStages> kv_pipeline_;
  const TileIndex tile_;
  const int first_row_;  // of the tile
  KeyBlocks blocks_;     // that the tile visits, from the last to the first
  Cursor cursor_;        // the next stage of K or V
};

template <Element E, int HeadDim, int BlockN>
__global__ void __launch_bounds__(PlainForward<E, HeadDim, BlockN>::kThreads, 1)
    plain_kernel(const __grid_constant__ PlainParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  PlainForward<E, HeadDim, BlockN> forward(params, uniform(ptx::cvta_to_shared(raw_smem)));
  if (threadIdx.x == 0) forward.init_barriers();
  __syncthreads();
  // The producer gives registers away, which the consumers need for their accumulators.
  const int warp = int(uniform(threadIdx.x / kWarpSize));
  const int warpgroup = warp / kWarpsPerWarpgroup;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<40>();
    if (warp == 0 && ptx::elect_sync()) forward.produce();
  } else {
    ptx::setmaxnreg_inc<232>();
    forward.consume(warpgroup - 1);
  }
}

}  // namespace fa3::hopper
