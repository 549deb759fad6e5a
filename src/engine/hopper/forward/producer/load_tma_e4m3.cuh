// SPDX-License-Identifier: Apache-2.0
// Keys and values of e4m3, by TMA: a block's scales travel with its K. V comes transposed, from
// where prepare_e4m3.cu has put it, or still puts it: then a tile waits for its head. Or it comes
// in rows, for transpose_values.cuh. Next: producer.cuh.
#pragma once

#include "engine/hopper/config/e4m3_tuning.h"
#include "engine/hopper/forward/policies/e4m3_smem.cuh"
#include "engine/hopper/forward/producer/load_tma_pages.cuh"
#include "engine/hopper/forward/producer/transpose_values.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// Keys: how K alone is loaded.
template <Kernel C, class Keys>
class E4m3Kv : public Keys {
  using Keys::at_, Keys::kv_, Keys::params_, Keys::wait_for_stage;

 public:
  struct Block {
    typename Keys::Block k;
    int key;  // the block's first, counted from the sequence's
    int kv_head;
    int sequence;
  };

  // The kernel before may still write V^T and the scales. This thread alone reads them, others what
  // it brings: it alone waits, for all of them here or for its tiles' heads (E4m3TileScales). Then
  // the last heads may still be in work when it is done, which this kernel must not be before them.
  __device__ __forceinline__ E4m3Kv(const ForwardParams& params, SmemAddresses<C> at)
      : Keys(params, at) {
    if (params.heads_in_work.parts_done == nullptr) ptx::griddepcontrol_wait();
  }
  __device__ __forceinline__ ~E4m3Kv() { ptx::griddepcontrol_wait(); }

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool starts) const {
    return {Keys::block_of(keys, number, starts), keys.first + number * C.shape.block_n,
            keys.kv_head, keys.sequence};
  }
  __device__ __forceinline__ void load_k(const Block& block) {
    constexpr int kScaleBytes = scale_groups(C) * int(sizeof(KeyScales));
    const uint32_t stage = kv_.stage();
    Keys::load_k(block.k, kScaleBytes);
    ptx::cp_async_bulk_load(key_scales(at_, stage),
                            params_.e4m3.keys_at(block.sequence, block.kv_head, block.key),
                            kScaleBytes, at_.loaded_pipeline().full(stage));
  }

  // Whole blocks: there are zeros behind the last key.
  __device__ __forceinline__ void load_v(const Block& block) {
    wait_for_stage();
    if constexpr (C.transposes_v()) {
      tile::load_rows(params_.v_map, Keys::kV, Keys::kV.rows, at_.loaded(kv_.stage()),
                      value_rows_pipeline(at_).full(value_rows_.stage()), block.k);
      value_rows_.advance();
      kv_.advance();
      return;
    }
    tile::load_rows(params_.v_map, Keys::kV, Keys::kV.rows, at_.loaded(kv_.stage()),
                    at_.loaded_pipeline().full(kv_.stage()),
                    {block.key, 0, block.kv_head, block.sequence});
    kv_.advance();
  }

 private:
  struct NoRows {};
  [[no_unique_address]] std::conditional_t<C.transposes_v(), PipelineState<C.shape.kv_stages>,
                                           NoRows>
      value_rows_;
};

// Packed heads share their scales (launch_e4m3.cpp).
template <Kernel C>
struct E4m3TileScales {
  static __device__ __forceinline__ void add(const ForwardParams& params, SmemPlan<C>& smem,
                                             WorkTileOf<C>& work, uint32_t stage) {
    const E4m3Params& e4m3 = params.e4m3;
    const PackGqa pack = params.output.pack;
    const auto& [batch, number, begin, count, used] = work.queries;
    const int sequence = sequence_of<C>(work);
    const int64_t head = e4m3.head_at(sequence, number / params.packs_per_kv_head);
    wait_for_head(params.heads_in_work, head);
    TileScales& scales = smem.sum.tiles[stage];
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const int row = pack.query(work.first_row + w * kRowsPerWarpgroup);
      scales.query[w] =
          params.scale_log2 *
          (row < used ? scale_of(e4m3.query, sequence, pack.head(number, 0), row) : 1.0f);
    }
    scales.value = e4m3.value_scales[head];
  }

 private:
  // TMA reads what other CTAs' threads have stored.
  static __device__ __forceinline__ void wait_for_head(const HeadsInWork& heads, int64_t head) {
    if (heads.parts_done == nullptr) return;
    while (ptx::ld_acquire(heads.parts_done + head) < heads.parts) {
    }
    ptx::fence_proxy_async_global();
  }

  static __device__ __forceinline__ float scale_of(const Descales<const float>& scales, int batch,
                                                   int head, int row) {
    return scales.data ? *scales.at(batch, head, row / kDescaleRows) : 1.0f;
  }
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kE4m3> : PlainKv {
  using Keys = std::conditional_t<C.general(), ThreadPages<C>, DenseKv<C>>;
  using Loads = E4m3Kv<C, Keys>;
  using Scales = E4m3TileScales<C>;
  using Helper = std::conditional_t<C.transposes_v(), ValueTransposer<C>, NoHelper>;
  using Smem = std::conditional_t<C.transposes_v(), ValueRowsPipeline<C>, PlainKv::Smem>;
};

}  // namespace fa3::hopper
