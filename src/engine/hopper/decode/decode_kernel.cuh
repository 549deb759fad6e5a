// SPDX-License-Identifier: Apache-2.0
// The decode kernel: for a few query rows, where all that counts is how fast keys come and how soon
// a call is done. A cluster of CTAs computes a split of a tile (scheduler/split_kv.h). Each of its
// warps loads keys of its own and waits for no other warp until their partial rows are combined.
// Every warp finds the splits for itself. Read first: stages.cuh, warp_rows.cuh. Next:
// cluster_reduce.cuh, combine_splits.cuh.
#pragma once

#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/decode/cluster_reduce.cuh"
#include "engine/hopper/decode/combine_splits.cuh"
#include "engine/hopper/decode/load_cp_async.cuh"
#include "engine/hopper/decode/load_tma.cuh"
#include "engine/hopper/decode/work_tiles.cuh"
#include "engine/hopper/ptx/sync.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/decode/function_rows.cuh"
#endif

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36hopper6KernelE = fa3::hopper::Kernel;

namespace fa3::hopper {

template <Kernel C>
struct FunctionRows;  // of kernels that take a score function

// What a decode kernel is composed of: the items that a cluster attends to, and who combines them.
template <Kernel C, bool SingleSequence = C.is_single_sequence()>
struct DecodeParts {
  using Items = RangeTiles<C>;
  using Combine = RangeCombine<C>;
};
template <Kernel C>
struct DecodeParts<C, true> {
  using Items = SingleTile<C>;
  using Combine = RowCombine<C>;
};

// A warp's partial rows, for the reduction: in its stages, which it has read; or in memory of their
// own, if the stages hold the next item's keys by then.
template <Kernel C, bool HasOneItem = C.is_single_sequence()>
struct WarpPartials {
  static constexpr int kFloats = C.shape.block_m * WarpRows<C>::kPartialStride;
  alignas(16) float parts[DecodeStages<C>::kWarps][kFloats];
  __device__ __forceinline__ float* of(int warp, void*) { return parts[warp]; }
};
template <Kernel C>
struct WarpPartials<C, true> {
  static_assert(WarpPartials<C, false>::kFloats * int(sizeof(float)) <=
                DecodeStages<C>::kStages * DecodeStages<C>::kBytes);
  __device__ __forceinline__ float* of(int, void* stages) { return static_cast<float*>(stages); }
};

template <Kernel C>
struct DecodeSmem {
  using Stages = DecodeStages<C>;
  alignas(kSmemAlignment) unsigned char stages[Stages::kWarps][Stages::kStages * Stages::kBytes];
  typename TmaKvLoader<C>::Barriers barriers[Stages::kWarps];
  WarpPartials<C> parts;
  ClusterReduceSmem<C> reduce;
  typename DecodeParts<C>::Combine::Smem combine;

  __device__ __forceinline__ float* part(int warp) { return parts.of(warp, stages[warp]); }
};

template <Kernel C, class KvLoader>
class DecodeCta {
  using Stages = DecodeStages<C>;
  using Rows = WarpRows<C>;

 public:
  __device__ __forceinline__ DecodeCta(const ForwardParams& params, DecodeSmem<C>& smem, int warp,
                                       RowShare share, typename Stages::Keys warp_keys,
                                       const KvLoader& loader)
      : params_(params),
        smem_(smem),
        warp_(warp),
        warp_keys_(warp_keys),
        loader_(loader),
        reduce_(smem.reduce, warp, params.partials.rows, share),
        combine_(params, smem.combine, warp, share),
        items_(params) {}

  __device__ __forceinline__ void run() {
    if constexpr (C.is_single_sequence()) {
      run_single();
    } else {
      run_all();
    }
  }

 private:
  __device__ __forceinline__ void run_single() {
    Rows rows(params_);
    DecodeTile item = items_.first();
    ptx::griddepcontrol_wait();  // the kernel before may still be running
    if constexpr (decode_shape(C).overlaps_next_call()) ptx::griddepcontrol_launch_dependents();
    start(item, rows);
    attend(item, rows);
    finish(item, true);
    if constexpr (!decode_shape(C).overlaps_next_call()) ptx::griddepcontrol_launch_dependents();
    if (item.partial != TileSplit::kNotSplit) combine_.end(items_.tile(item));
  }

  __device__ __forceinline__ void run_all() {
    Rows rows(params_);
    DecodeTile item, last;
    ptx::griddepcontrol_wait();
#pragma unroll 1
    for (bool is_first = true;; is_first = false) {
      const bool exists = items_.next(item);
      // Its keys are on their way while the last item's rows are reduced.
      if (exists) start(item, rows);
      if (!is_first) finish(last, !exists);
      if (!exists) break;
      attend(item, rows);
      last = item;
    }
    reduce_.close();  // where there was no item
    ptx::griddepcontrol_launch_dependents();
    combine_.end();
  }

  // Its queries and first keys are asked for.
  __device__ __forceinline__ void start(DecodeTile& item, Rows& rows) {
    loader_.look_up(item.keys);
    items_.look_up();
    items_.settle(item);
    steps_ = int(uniform(uint32_t(warp_keys_.stages_of(item.keys.end - item.keys.begin))));
    loader_.start(item.keys.end, steps_);
    const cuda::PackGqa pack = params_.output.pack;
    const auto row_at = [&](int row) -> const uint16_t* {
      const int query = pack.query(row);
      if (query >= item.queries.count) return nullptr;
      return params_.q.at(item.queries.batch, pack.head(item.queries.pack, row), query);
    };
    rows.load_queries(row_at, params_.q.columns);
    if (item.partial != TileSplit::kNotSplit) combine_.begin(items_.tile(item));
  }

  __device__ __forceinline__ void attend(const DecodeTile& item, Rows& rows) {
    const cuda::PackGqa pack = params_.output.pack;
    rows.set_scale(key_scale(item));
    rows.clear();
    if constexpr (C.outputs.max_logit) rows.forget_largest();
    rows.rescale_queries();
    const bool is_split = item.partial != TileSplit::kNotSplit;
    if constexpr (!C.is_single_sequence()) {
      if (is_split) combine_.prepare();
    }
    // The first key that is hidden from a row; the first row sees the fewest keys.
    const auto end_of = [&](int row) {
      const MaskRuleOf<int> mask{.right = params_.mask.right};
      return mask.keys_of(pack.query(row), item.queries.used, item.num_keys).end;
    };
    const int seen_by_all = end_of(0);
    int first = item.keys.begin + warp_keys_.first_key;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step, first += warp_keys_.step_keys) {
      rows.multiply_keys(loader_.wait_for_k());
      loader_.release_k();
      if constexpr (kHasScoreFunction) FunctionRows<C>::apply(rows, params_, item, first);
      if (first > seen_by_all - Stages::kKeys) rows.mask(first, end_of);
      if constexpr (C.outputs.max_logit) rows.see_largest();
      rows.softmax();
      rows.multiply_values(loader_.wait_for_v());
      loader_.release_v();
    }
    if constexpr (C.outputs.max_logit) raise_max_logits(rows, item);
    reduce_.put(rows, smem_.part(warp_));
    if constexpr (C.is_single_sequence()) {
      if (is_split) combine_.prepare(items_.tile(item));
    }
  }

  // Every warp calls this for its keys. Queries of a decode call have one length.
  __device__ __forceinline__ void raise_max_logits(const Rows& rows, const DecodeTile& item) const {
    const cuda::PackGqa pack = params_.output.pack;
    rows.raise_largest([&](int row) -> float* {
      if (pack.query(row) >= item.queries.count) return nullptr;
      return params_.outputs.max_logit.at(item.queries.batch, pack.head(item.queries.pack, row));
    });
  }

  __device__ __forceinline__ float scale_of(const Descales<const float>& of,
                                            const DecodeTile& item) const {
    return of.data && item.num_keys > 0 ? *of.at(item.queries.batch, item.keys.kv_head, 0) : 1.0f;
  }
  // To exponents of two, or natural scores (encode_scores()). Neither zero nor infinite: masked
  // scores are -inf, and products may be zero.
  __device__ __forceinline__ float key_scale(const DecodeTile& item) const {
    if constexpr (!C.dequantizes()) return params_.scale_log2;
    const float scale = scale_of(params_.cache_scales.key, item) * params_.scale_log2;
    return fminf(fmaxf(scale, 0x1p-126f), 0x1.fffffep127f);
  }

  // Stores the reduced rows of all warps: a tile, or a split of one.
  __device__ __forceinline__ void finish(const DecodeTile& item, bool is_last) {
    float value_scale = 1.0f;
    if constexpr (C.dequantizes()) value_scale = scale_of(params_.cache_scales.value, item);
    const auto part = [&](int warp) { return smem_.part(warp); };
    reduce_.all(part, is_last, [&](CombinedSum& sum, int row, int column) {
      sum = sum.times(value_scale);
      if (item.partial == TileSplit::kNotSplit) {
        const CombineTile tile{.queries = item.queries};
        finish_row<C.element, false>(sum, params_.output, tile, row, column,
                                     CombinedGate<C>::of(params_));
      } else {
        store_partial(sum, item.partial, row, column);
      }
    });
  }

  __device__ __forceinline__ void store_partial(const CombinedSum& sum, int partial, int row,
                                                int column) const {
    const PartialOutput& to = params_.partials;
    const int64_t at = to.row(partial, row);
    if (column < to.columns) {
      *reinterpret_cast<float4*>(to.o + at * to.columns + column) = sum.normalised();
    }
    if (column == 0) to.sums[at] = {sum.ref, sum.sum};
  }

  const ForwardParams& params_;
  DecodeSmem<C>& smem_;
  const int warp_;
  const typename Stages::Keys warp_keys_;
  KvLoader loader_;
  ClusterReduce<C> reduce_;
  typename DecodeParts<C>::Combine combine_;
  typename DecodeParts<C>::Items items_;
  int steps_ = 0;  // of the warp, in the current item
};

template <Kernel C>
__global__ void __launch_bounds__(C.threads(), decode_shape(C).ctas_per_sm)
    decode_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  DecodeSmem<C>& smem = *reinterpret_cast<DecodeSmem<C>*>(raw_smem);
  const int warp = int(uniform(threadIdx.x / kWarpSize));
  const RowShare share{int(ptx::cluster_rank()), 1 << params.clusters.size_log2};
  // Parts of a tile take turns too.
  using Stages = DecodeStages<C>;
  const int warp_of_cluster = share.first * Stages::kWarps + warp;
  constexpr bool kHasParts = C.is_single_sequence();
  const int part = kHasParts ? int(blockIdx.x) >> params.clusters.size_log2 : 0;
  const typename Stages::Keys warp_keys(part * share.step * Stages::kWarps + warp_of_cluster,
                                        Stages::kWarpsLog2 + params.clusters.size_log2 +
                                            (kHasParts ? params.clusters.parts_log2 : 0));
  const uint32_t stages = ptx::cvta_to_shared(smem.stages[warp]);
  const auto run = [&]<class Loader>(const Loader& loader) {
    DecodeCta<C, Loader>(params, smem, warp, share, warp_keys, loader).run();
  };
  if constexpr (decode_shape(C).may_use_tma) {
    if (!params.cp_async.active) {
      run(TmaKvLoader<C>(params, stages, ptx::cvta_to_shared(&smem.barriers[warp]), warp_keys));
      return;
    }
  }
  run(CpAsyncKvLoader<C>(params, stages, warp_keys));
}

template <Kernel C>
requires(C.is_decode()) struct KernelOf<C> {
  static constexpr int kSmemBytes = sizeof(DecodeSmem<C>);
  static_assert(kSmemBytes <= smem_bytes_of_each(decode_shape(C).ctas_per_sm));
  static constexpr auto kFunction = &decode_kernel<C>;
};

}  // namespace fa3::hopper
