// SPDX-License-Identifier: Apache-2.0
// Where the keys of a tile's sequence lie, and the stages that they are copied through while the
// CTA multiplies what has come before. Two stages have K and V of a block each, and one barrier a
// block: behind it all copies of the stage that is read are there, and all have left the one that
// is filled next. One stage has two barriers a block: V is copied under Q K^T, the next K under P
// V. A quantized cache is dequantized on its way. Next: warp_tile.cuh.
#pragma once

#include "engine/ampere/config/forward_config.h"
#include "engine/ampere/forward/visit.cuh"
#include "engine/ampere/tile/copy_rows.cuh"
#include "engine/ampere/tile/dequantize_rows.cuh"

namespace fa3::ampere {

template <ForwardConfig C>
class KeyTiles {
 public:
  __device__ __forceinline__ KeyTiles(const ForwardParams& params, const TileWork<C>& work,
                                      uint32_t stages)
      : params_(params), work_(work), stages_(stages) {}

  __device__ __forceinline__ uint32_t k(const Visit<C>& visit) const {
    return stages_ + uint32_t(visit.stage()) * C.stage_bytes();
  }
  __device__ __forceinline__ uint32_t v(const Visit<C>& visit) const {
    return k(visit) + C.k_tile().bytes();
  }

  // The copies of the first block that is visited begin.
  __device__ __forceinline__ void start(const Visit<C>& first) const {
    if constexpr (C.stages == 2) {
      ask_both(first);
    } else {
      ask_k(first);
    }
  }

  // K of the block is there, and V if there are two stages; what comes next is asked for. All warps
  // of the CTA call this for each block, and then wait_for_values().
  __device__ __forceinline__ void wait_for_keys(const Visit<C>& now, const Visit<C>& next) const {
    wait();
    if constexpr (C.stages == 2) {
      ask_both(next);
    } else {
      ask_v(now);
    }
  }
  __device__ __forceinline__ void wait_for_values(const Visit<C>& next) const {
    if constexpr (C.stages == 1) {
      wait();
      ask_k(next);
    }
  }

 private:
  static constexpr Element kStored = C.quantized ? Element::kE4m3 : C.element;

  // Until all that was asked for is there for all, and all have left what was read before.
  __device__ __forceinline__ static void wait() {
    cp_async_wait_all();
    __syncthreads();
  }

  // Blocks below 0 do not exist.
  __device__ __forceinline__ void ask_k(const Visit<C>& of) const {
    if (of.block >= 0) copy<C.k_tile()>(params_.k, k(of), first_key(of));
  }
  __device__ __forceinline__ void ask_v(const Visit<C>& of) const {
    if (of.block >= 0) copy<C.v_tile()>(params_.v, v(of), first_key(of));
  }
  __device__ __forceinline__ int first_key(const Visit<C>& of) const {
    return work_.first_key + of.block * C.block_n;
  }

  // A quantized cache takes long code, which is there once for both.
  __device__ __forceinline__ void ask_both(const Visit<C>& of) const {
    if constexpr (C.quantized) {
      static_assert(C.stages == 2 && C.head_dim == C.head_dim_v);
      const int first = first_key(of);
#pragma unroll 1
      for (int i = 0; i < 2 && of.block >= 0; ++i) {
        copy<C.k_tile()>(i == 0 ? params_.k : params_.v, k(of) + i * C.k_tile().bytes(), first);
      }
    } else {
      ask_k(of);
      ask_v(of);
    }
  }

  template <TileLayout Layout>
  __device__ __forceinline__ void copy(const CopiedRows& from, uint32_t to, int first) const {
    const RowTensor& t = from.tensor;
    const KeyRows& keys = work_.tile.rows.keys;
    const auto row = [&](int number) { return row_at(t, first + number); };
    if constexpr (C.quantized) {
      dequantize_rows<C.element, Layout, C.threads()>(to, row, t.columns, from.width,
                                                      params_.cache_is_e5m2);
    } else if (from.in_chunks && params_.pages.page_size == 0) {
      copy_chunks<Layout, C.threads()>(to, t.at(keys.batch, work_.kv_head, keys.begin + first),
                                       t.strides.row, keys.count - first, t.columns);
    } else {
      copy_rows<Layout, C.threads()>(to, row, t.columns, from.width);
    }
  }

  // Null behind the last key, and for pages that do not exist.
  __device__ __forceinline__ const Bits<kStored>* row_at(const RowTensor& t, int key) const {
    const KeyRows& keys = work_.tile.rows.keys;
    if (key >= keys.count) return nullptr;
    const PagedKeys& pages = params_.pages;
    const int row = keys.begin + key;
    if (pages.page_size == 0) return t.at<kStored>(keys.batch, work_.kv_head, row);
    const int page = __ldg(pages.table + keys.batch * pages.table_stride + row / pages.page_size);
    if (unsigned(page) >= unsigned(pages.num_pages)) return nullptr;
    return t.at<kStored>(page, work_.kv_head, row % pages.page_size);
  }

  const ForwardParams& params_;
  const TileWork<C>& work_;
  const uint32_t stages_;
};

}  // namespace fa3::ampere
