// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2's forward: a CTA has a tile of query rows of one sequence, and walks over its
// blocks of keys from the last to the first. Each warp has rows of its own, and for each block
//
//   S = Q K^T        by mma.sync, fragments of Q and K by ldmatrix        WarpTile::multiply_keys
//   P = 2^(c S - r)  c = scale * log2(e); r: a reference of the row       ScoreStep
//   O += P V                                                              WarpTile::multiply_values
//
// while cp.async brings the next block (key_tiles.cuh). At the end O / sum and the log-sum-exp
// (cuda/softmax/epilogue.cuh). Nothing depends on other CTAs: results are the same in every run,
// and in every batch if tiles are. Where there are few tiles, CTAs share the key blocks of one
// (split-KV), and leave partial results that cuda/kernels/merge.cu merges.
#pragma once

#include "engine/ampere/forward/key_tiles.cuh"
#include "engine/ampere/forward/score_step.cuh"
#include "engine/cuda/dropout/dropout.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/cuda/softmax/output_gate.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36ampere13ForwardConfigE = fa3::ampere::ForwardConfig;

namespace fa3::ampere {

template <ForwardConfig C>
__device__ __forceinline__ void copy_queries(const ForwardParams& params,
                                             const TileOfSequence& tile, uint32_t smem) {
  const RowTensor& q = params.q.tensor;
  const QueryRows& rows = tile.rows.queries;
  const PackGqa pack = params.output.pack;
  if (params.q.in_chunks && pack.heads() == 1) {
    copy_chunks<C.q_tile(), C.threads()>(smem,
                                         q.at(rows.batch, tile.pack, rows.begin + tile.first_row),
                                         q.strides.row, rows.count - tile.first_row, q.columns);
    return;
  }
  copy_rows<C.q_tile(), C.threads()>(
      smem,
      [&](int row) -> const uint16_t* {
        const int packed = tile.first_row + row, query = pack.query(packed);
        if (query >= rows.count) return nullptr;
        return q.at(rows.batch, pack.head(tile.pack, packed), rows.begin + query);
      },
      q.columns, params.q.width);
}

// Dropout of a warp's P. One tile of 16 rows: draws take registers.
template <ForwardConfig C, bool On = C.dropout>
struct WarpDropout {
  __device__ __forceinline__ WarpDropout(const ForwardParams&, const TileWork<C>&, int) {}
  __device__ __forceinline__ void drop(typename WarpTile<C>::Factors&, int) const {}
  __device__ __forceinline__ static PlainValues values(const ForwardParams&) { return {}; }
};

template <ForwardConfig C>
struct WarpDropout<C, true> {
  static constexpr int kCalls = C.block_n / kDropoutKeys;  // of the generator
  static_assert(C.row_tiles() == 1 && C.block_n % kDropoutKeys == 0);
  const ForwardParams& params;
  const TileWork<C>& work;
  QueryRowDropout draws;

  __device__ __forceinline__ WarpDropout(const ForwardParams& p, const TileWork<C>& w, int warp)
      : params(p), work(w), draws(p.dropout) {
    draws.set_tile(w.tile.sequence, w.tile.pack, w.first_row(warp));
  }
  __device__ __forceinline__ void drop(typename WarpTile<C>::Factors& p, int block) const {
    PhiloxWords words[kCalls];
    draws.call(words, work.first_key + block * C.block_n);
    draws.drop(p, words, params.dropout);
  }
  __device__ __forceinline__ static KeptValues values(const ForwardParams& p) {
    return {p.dropout.scale};
  }
};

// What is left to do to O because of how its P and V were multiplied.
template <ForwardConfig C>
__device__ __forceinline__ auto values_of(const ForwardParams& params, const TileWork<C>& work) {
  if constexpr (C.quantized) {
    return KeptValues{cache_scale(params.cache_scales.value, work)};
  } else {
    return WarpDropout<C>::values(params);
  }
}

// Finishes the rows of O that begin with `first_row`: `values`, and the gate.
template <ForwardConfig C, class Values>
__device__ __forceinline__ auto gated(const ForwardParams& params, const QueryRows& queries,
                                      int first_row, const Values& values) {
  if constexpr (C.gated()) {
    static constexpr EarlyLogits<0> kEarly;
    return GatedValues<C.outputs.gate, C.outputs.gate_type, Values, EarlyLogits<0>>{
        values, params.outputs.gate, params.output.pack, queries, first_row, kEarly};
  } else {
    return values;
  }
}

// S of a block. Where it is computed `again`, the next one has been asked for.
template <ForwardConfig C>
__device__ __forceinline__ void multiply_keys(WarpTile<C>& r, MatrixRows<C.q_tile()> q_rows,
                                              const KeyTiles<C>& keys, int block, bool again) {
  if constexpr (KeyTiles<C>::kAsksBetween) {
    if (!again && keys.asks_under_keys(block)) {
      r.multiply_keys(q_rows, keys.k(block), keys.copies_under_keys(block));
      return;
    }
  }
  r.multiply_keys(q_rows, keys.k(block), [](int) {});
}

// The end of a tile. Most outputs take the short way: the code of the others is several times as
// long, and a CTA that ends has nothing to do under the wait for instructions.
template <ForwardConfig C>
__device__ __forceinline__ void store_tile(const ForwardParams& params, const TileWork<C>& work,
                                           WarpTile<C>& r) {
  // Splits leave partial results one behind the other; one of them has the sinks.
  ForwardOutput output = params.output;
  QueryRows rows = work.tile.rows.queries;
  rows.batch += work.split * params.partial_batches;
  if (work.split > 0) output.sink = nullptr;
  // Not `warp`, which no register is left for.
  const int first_row = work.first_row(int(thread_in_block()) / kWarpSize);
  if (params.output_is_plain) {
#pragma unroll
    for (int t = 0; t < C.row_tiles(); ++t) {
      store_rows<C.element, -C.headroom_log2(), true>(
          output, rows, first_row + t * kRowsPerWarp, r.output[t], r.rows[t],
          gated<C>(params, rows, first_row + t * kRowsPerWarp, values_of<C>(params, work)));
    }
    return;
  }
#pragma unroll
  for (int t = 0; t < C.row_tiles(); ++t) {
    store_rows<C.element, -C.headroom_log2(), true, true, true>(
        output, rows, first_row + t * kRowsPerWarp, r.output[t], r.rows[t],
        gated<C>(params, rows, first_row + t * kRowsPerWarp, values_of<C>(params, work)));
  }
}

// The largest scores of a warp's rows join those of their heads.
template <ForwardConfig C>
__device__ __forceinline__ void raise_max_logits(const ForwardParams& params,
                                                 const TileWork<C>& work, const WarpTile<C>& r) {
  const MaxLogitParams& to = params.outputs.max_logit;
  const float scale = to.scale * (C.quantized ? cache_scale(params.cache_scales.key, work) : 1.0f);
  const int first_row = work.first_row(int(thread_in_block()) / kWarpSize);
#pragma unroll
  for (int t = 0; t < C.row_tiles(); ++t) {
    cuda::raise_max_logits(to, work.tile.sequence, params.output.pack, work.tile.rows.queries,
                           first_row + t * kRowsPerWarp, r.largest[t], {scale, scale});
  }
}

template <ForwardConfig C>
struct ForwardSmem {
  unsigned char q[C.q_tile().bytes()];
  unsigned char stages[C.stages * C.stage_bytes()];
  TileWork<C> work;
};

template <ForwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.ctas_per_sm)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  static_assert(sizeof(ForwardSmem<C>) <= C.smem_bytes());
  auto& smem = *reinterpret_cast<ForwardSmem<C>*>(dynamic_smem());
  TileWork<C>& work = smem.work;
  const int warp = uniform(int(threadIdx.x) / kWarpSize);
  if (threadIdx.x == 0) find_tile(params, int(blockIdx.x), work);
  __syncthreads();
  if (work.tile.first_row < 0) return;
  const uint32_t q_smem = cvta_to_shared(smem.q);
  copy_queries<C>(params, work.tile, q_smem);
  KeyTiles<C>(params, work, cvta_to_shared(smem.stages)).start(work.num_blocks - 1);
  // Under the first copies, whose barrier tells the other lanes.
  if (threadIdx.x % kWarpSize == 0) find_blocks(params, warp, work);

  const KeyTiles<C> keys(params, work, cvta_to_shared(smem.stages));
  // With three CTAs on an SM there are too few registers around the uniform ones.
  WarpWork& mine = work.of_warp[C.ctas_per_sm > 2 ? int(thread_in_block()) / kWarpSize : warp];
  ScoreStep<C> step(params, work, mine);
  const WarpDropout<C> dropout(params, work, warp);
  const auto q_rows = MatrixRows<C.q_tile()>::down(q_smem, warp * C.warp_rows());
  WarpTile<C> r;
  r.clear();
  const int num_blocks = uniform(work.num_blocks);
#pragma unroll 1
  for (int block = num_blocks - 1; block >= 0; --block) {
    keys.wait_for_keys(block);
    if constexpr (C.block_mask) {
      if (threadIdx.x == 0) {
        work.visits.template look_ahead<C>(params, work.tile, work.first_key, block);
      }
    }
    if (block == num_blocks - 1) r.load_queries(q_rows);
    if (uniform(work.place_of(block) >= mine.blocks.count) != 0) {
      if (keys.asks_under_keys(block)) keys.ask_under_keys(block);
      keys.wait_for_values(block, true);
      continue;
    }
    bool again = false;
#pragma unroll 1
    for (;; again = true) {
      multiply_keys(r, q_rows, keys, block, again);
      if (step.take(r, block, again)) break;
    }
    keys.wait_for_values(block);
    const auto drop = [&](typename WarpTile<C>::Factors& p) {
      dropout.drop(p, work.place_of(block));
    };
    if constexpr (KeyTiles<C>::kAsksBetween && C.stages == 1) {
      if (keys.asks_under_values(block)) {
        r.multiply_values(keys.v(block), drop, keys.copies_under_values(block));
        continue;
      }
    }
    r.multiply_values(keys.v(block), drop, [](int) {});
  }
  // Copies that nobody waited for: there were no keys.
  cp_async_wait_all();
  if constexpr (C.outputs.max_logit) raise_max_logits(params, work, r);
  store_tile<C>(params, work, r);
}

}  // namespace fa3::ampere
