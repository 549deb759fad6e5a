// SPDX-License-Identifier: Apache-2.0
// Where the keys of a tile's sequence lie, and the stages that they are copied through while the
// CTA multiplies what has come before. Two stages have K and V of a block each, and one barrier a
// block: behind it all copies of the stage that is read are there, and all have left the one that
// is filled next. One stage has two barriers a block: V is copied under Q K^T, the next K under P
// V. A quantized cache is dequantized on its way. Next: warp_tile.cuh.
#pragma once

#include "engine/ampere/config/forward_config.h"
#include "engine/ampere/forward/tile_work.cuh"
#include "engine/ampere/tile/copy_rows.cuh"
#include "engine/ampere/tile/dequantize_rows.cuh"

namespace fa3::ampere {

template <ForwardConfig C>
class KeyTiles {
 public:
  // With three CTAs on an SM, and under a block mask, there are too few registers; where a warp is
  // a CTA others have products.
  static constexpr bool kAsksBetween =
      !C.quantized && !C.block_mask && C.warps() > 1 && C.ctas_per_sm <= 2;

  __device__ __forceinline__ KeyTiles(const ForwardParams& params, const TileWork<C>& work,
                                      uint32_t stages)
      : params_(params), work_(work), stages_(stages) {}

  __device__ __forceinline__ uint32_t k(int block) const {
    return stages_ + uint32_t(block % C.stages) * C.stage_bytes();
  }
  __device__ __forceinline__ uint32_t v(int block) const { return k(block) + C.k_tile().bytes(); }

  // The copies of the first block that is visited begin.
  __device__ __forceinline__ void start(int block) const {
    if constexpr (C.stages == 2) {
      ask_both(block);
    } else {
      ask_k(block);
    }
  }

  // K of the block is there, and V if there are two stages; what comes next is asked for, unless
  // warps do so between their products. All warps of the CTA call this for each block, and then
  // wait_for_values().
  __device__ __forceinline__ void wait_for_keys(int block) const {
    wait();
    if (!asks_under_keys(block)) ask_under_keys(block);
  }
  // passes: a warp that has no products of this block.
  __device__ __forceinline__ void wait_for_values(int block, bool passes = false) const {
    if constexpr (C.stages == 1) {
      wait();
      if (passes || !asks_under_values(block)) ask_k(block - 1);
    }
  }

  // Whether a warp asks for copies one by one between the products of Q K^T, while the tensor cores
  // work: of the next block, or of V of this one, if there is one stage. Before the products they
  // take a tenth of a block's time. Keys may be missing in the block that is visited first alone.
  __device__ __forceinline__ bool asks_under_keys(int block) const {
    return are_plain() && (C.stages == 2 ? block > 0 : block < work_.num_blocks - 1);
  }
  // Or of the next K between those of P V, in one stage.
  __device__ __forceinline__ bool asks_under_values(int block) const {
    return C.stages == 1 && are_plain() && block > 0;
  }

  // The thread's copies between products, step by step.
  template <bool OfK, bool OfV, int Each>
  struct Copies {
    const ForwardParams& params;
    WholeTile<C.k_tile(), C.threads()> k;
    WholeTile<C.v_tile(), C.threads()> v;

    __device__ __forceinline__ void operator()(int step) const {
#pragma unroll
      for (int i = step * Each; i < (step + 1) * Each; ++i) {
        if (OfK && i < k.kCopies) k.copy(i, params.k.tensor.strides.row);
        if (OfV && i < v.kCopies) v.copy(i, params.v.tensor.strides.row);
      }
    }
  };
  // For WarpTile::multiply_keys(), and multiply_values().
  __device__ __forceinline__ auto copies_under_keys(int block) const {
    if constexpr (C.stages == 2) {
      constexpr int kSteps = C.head_dim / 16, kCopies = WholeTile<C.k_tile(), C.threads()>::kCopies;
      return copies<true, true, (kCopies + kSteps - 1) / kSteps>(block - 1);
    } else {
      static_assert(WholeTile<C.v_tile(), C.threads()>::kCopies <= C.head_dim / 16 * kEachSoon);
      return copies<false, true, kEachSoon>(block);
    }
  }
  __device__ __forceinline__ auto copies_under_values(int block) const {
    static_assert(WholeTile<C.k_tile(), C.threads()>::kCopies <= C.head_dim_v / 16 * kEachSoon);
    return copies<true, false, kEachSoon>(block - 1);
  }

  // Asks for all of these copies in one call, for a warp that issues no products.
  __device__ __forceinline__ void ask_under_keys(int block) const {
    if constexpr (C.stages == 2) {
      ask_both(block - 1);
    } else {
      ask_v(block);
    }
  }

 private:
  static constexpr Element kStored = C.quantized ? Element::kE4m3 : C.element;
  static constexpr int kEachSoon = 4;  // copies of a step, where they are waited for in this block

  __device__ __forceinline__ bool are_plain() const {
    return kAsksBetween && params_.k.in_chunks && params_.v.in_chunks &&
           params_.k.tensor.columns == C.head_dim && params_.v.tensor.columns == C.head_dim_v;
  }

  template <bool OfK, bool OfV, int Each>
  __device__ __forceinline__ auto copies(int block) const {
    const int64_t first = int64_t{work_.place_of(block)} * C.block_n;
    const int64_t k_stride = params_.k.tensor.strides.row, v_stride = params_.v.tensor.strides.row;
    return Copies<OfK, OfV, Each>{params_,
                                  {k(block), work_.k + first * k_stride, k_stride},
                                  {v(block), work_.v + first * v_stride, v_stride}};
  }

  // Until all that was asked for is there for all, and all have left what was read before.
  __device__ __forceinline__ static void wait() {
    cp_async_wait_all();
    __syncthreads();
  }

  // Blocks below 0 do not exist.
  __device__ __forceinline__ void ask_k(int block) const {
    if (block >= 0) copy<C.k_tile()>(params_.k, work_.k, k(block), block);
  }
  __device__ __forceinline__ void ask_v(int block) const {
    if (block >= 0) copy<C.v_tile()>(params_.v, work_.v, v(block), block);
  }

  // A quantized cache takes long code, which is there once for both.
  __device__ __forceinline__ void ask_both(int block) const {
    if constexpr (C.quantized) {
      static_assert(C.stages == 2 && C.head_dim == C.head_dim_v);
#pragma unroll 1
      for (int i = 0; i < 2 && block >= 0; ++i) {
        copy<C.k_tile()>(i == 0 ? params_.k : params_.v, nullptr, k(block) + i * C.k_tile().bytes(),
                         block);
      }
    } else {
      ask_k(block);
      ask_v(block);
    }
  }

  // begin: of the tensor's rows from block 0 on, where they are copied in chunks.
  template <TileLayout Layout>
  __device__ __forceinline__ void copy(const CopiedRows& from, const uint16_t* begin, uint32_t to,
                                       int block) const {
    const RowTensor& t = from.tensor;
    const int first = work_.place_of(block) * C.block_n;
    const auto row = [&](int number) { return row_at(t, work_.first_key + first + number); };
    if constexpr (C.quantized) {
      dequantize_rows<C.element, Layout, C.threads()>(to, row, t.columns, from.width,
                                                      params_.cache_is_e5m2);
    } else if (from.in_chunks) {
      copy_chunks<Layout, C.threads()>(to, begin + first * t.strides.row, t.strides.row,
                                       work_.keys_left - first, t.columns);
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
