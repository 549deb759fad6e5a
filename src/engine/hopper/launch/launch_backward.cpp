// SPDX-License-Identifier: Apache-2.0
// From a plan to tensor maps, parameters and grids. See launch_backward.h; the main kernel begins
// in backward_kernel.cuh.
#include "engine/hopper/launch/launch_backward.h"

#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/scheduler/side_kernels.h"

namespace fa3::hopper {
namespace {

using cuda::array_at;

// The workspace's arrays; null where the plan has none.
struct Arrays {
  Arrays(const BackwardPlan& plan, void* workspace) {
    const BackwardWorkspace& w = plan.workspace;
    const BackwardCall& a = plan.call;
    scratch = {.lse_log2 = array_at<float>(workspace, w.lse_log2),
               .delta = array_at<float>(workspace, w.delta),
               .dq_accum = array_at<float>(workspace, w.dq_accum),
               .dq_semaphore = array_at<int>(workspace, w.dq_semaphore),
               .numbers = {int(plan.q_blocks.of_entry), int(a.q.heads)}};
    dkv_accum = {.dk = array_at<float>(workspace, w.dk_accum),
                 .dv = array_at<float>(workspace, w.dv_accum),
                 .numbers = {int(plan.k_blocks.of_entry), int(a.k.heads)},
                 .blocks = plan.k_blocks.in_all * a.k.heads};
    sink_sums = array_at<float>(workspace, w.sink_sums);
    d_o = cuda::behind_gate(a, array_at<uint16_t>(workspace, w.d_a));
    q_tiles = {array_at<SequenceTiles>(workspace, w.q_tiles),
               array_at<int>(workspace, w.num_q_tiles)};
    k_tiles = {array_at<SequenceTiles>(workspace, w.k_tiles),
               array_at<int>(workspace, w.num_k_tiles)};
  }

  // A list of tiles and how many it has.
  struct List {
    SequenceTiles* sequences;
    int* num_entries;

    VarlenTiles tiles() const { return {sequences, num_entries}; }
  };

  QueryScratch scratch;
  DkvAccum dkv_accum;
  float* sink_sums;
  TensorSpan d_o;  // the main kernel's
  List q_tiles, k_tiles;
};

// Lists the tiles of `rows`: queries for preprocess and postprocess, keys for the main kernel,
// where queries and keys change places in the list's words.
cudaError_t list_tiles(const BackwardCall& a, const Arrays::List& list, const TensorSpan& rows,
                       const Lengths& lengths, const Lengths& others, int block_rows,
                       int tail_tiles, int64_t capacity, cudaStream_t stream) {
  return prepare_varlen_metadata({.lengths_q = lengths,
                                  .lengths_k = others,
                                  .batch = int(a.sequences),
                                  .block_m = block_rows,
                                  .pack = {},
                                  .num_packs = int(rows.heads),
                                  .tail_tiles = tail_tiles,
                                  .capacity = int(capacity),
                                  .entries = list.sequences,
                                  .num_entries = list.num_entries,
                                  .tile_counter = nullptr},
                                 stream);
}

// Clipped maps of queries may have heads packed.
bool encode_maps(BackwardParams& p, const BackwardConfig& c, const BackwardPlan& plan,
                 const TensorSpan& given_d_o) {
  const BackwardCall& a = plan.call;
  // Without queries their maps are never read; those of the keys stand in.
  const TensorSpan& q = a.has_no_queries() ? a.k : a.q;
  const TensorSpan& d_o = a.has_no_queries() ? a.v : given_d_o;
  const auto encode = [&](CUtensorMap& map, CUtensorMap& outside, const TensorSpan& t,
                          tile::TileLayout layout) {
    return c.general() ? encode_clipped_map(map, outside, t, c.element, layout)
                       : encode_tensor_map(map, t, c.element, layout, layout.rows);
  };
  const auto encode_queries = [&](CUtensorMap& map, CUtensorMap& outside, const TensorSpan& t,
                                  tile::TileLayout layout) {
    if (plan.short_pack.log2 == 0) return encode(map, outside, t, layout);
    return encode_clipped_queries(map, outside, t, c.element, layout, layout.rows,
                                  plan.short_pack.heads());
  };
  CUtensorMap unused;  // nothing is stored outside
  return encode_queries(p.q_map, p.q_outside, q, c.q_tile()) &&
         encode_queries(p.d_o_map, p.d_o_outside, d_o, c.d_o_tile()) &&
         encode(p.k_map, p.k_outside, a.k, c.k_tile()) &&
         encode(p.v_map, p.v_outside, a.v, c.v_tile()) &&
         (c.wide() || (encode(p.dk_map, unused, a.dk, c.dk_tile()) &&
                       encode(p.dv_map, unused, a.dv, c.dv_tile())));
}

RowOperands row_operands(const BackwardCall& a) {
  return {row_tensor(a.o), row_tensor(a.d_o), a.lse, a.d_lse};
}

// All but what lies in the workspace; false: the driver refused a map.
bool fill(BackwardParams& p, const BackwardConfig& c, const BackwardPlan& plan,
          const TensorSpan& d_o) {
  const BackwardCall& a = plan.call;
  if (!encode_maps(p, c, plan, d_o)) return false;
  p.order = plan.order;
  p.extents = {a.seqlen_q, a.seqlen_k, a.is_causal()};
  p.heads_per_kv_head = int(a.heads_per_kv_head());
  p.scale = a.gradient_scale;
  p.scale_log2 = a.has_score_function ? cuda::kLog2E : cuda::log2_scale(a.scale);
  p.columns = int(a.q.columns);
  p.columns_v = int(a.v.columns);
  p.q_is_packed = a.lengths_q.in_one_tensor;
  p.mask = a.mask;
  p.dropout = cuda::DropoutParams::of(a.dropout);
  p.scale_of_one_key = a.gradient_scale_of_one_key;
  if (a.softcap != 0) {
    p.soft_cap = SoftCap::of(a.scale, a.softcap);
    p.per_cap = 1 / p.soft_cap.cap;
  }
  return true;
}

cuda::BlockListParams lists_in(const BackwardPlan& plan, void* workspace) {
  cuda::BlockListParams lists = plan.lists;
  if (plan.call.block_lists == nullptr) set_memory(lists, plan.workspace.lists, workspace);
  return lists;
}

cudaError_t launch_main(const BackwardPlan& plan, const ScoreGradientOperands* score,
                        const Arrays& arrays, void* workspace, bool pdl, cudaStream_t stream) {
  const BackwardCall& a = plan.call;
  ScoredBackwardParams scored{};
  WideBackwardParams wide{};
  if (score) scored.score = *score;
  BackwardParams& p = score ? scored.main : wide;
  if (plan.grids.main == 0) return cudaSuccess;
  if (!fill(p, plan.kernel.config, plan, arrays.d_o)) return cudaErrorInvalidValue;
  p.scratch = arrays.scratch;
  p.varlen = arrays.k_tiles.tiles();
  p.dkv_accum = arrays.dkv_accum;
  wide.dk = row_tensor(a.dk);
  wide.dv = row_tensor(a.dv);
  wide.adds = a.accumulate_dkv;
  if (plan.kernel.config.block_mask()) p.lists = column_lists(lists_in(plan, workspace));
  return launch(plan.main, unsigned(plan.grids.main), plan.main_config.threads(),
                score ? kMaxSmemBytes : plan.kernel.smem_bytes, &p,
                {.pdl = pdl, .cluster = plan.main_config.ctas()}, stream);
}

cudaError_t launch_short_sequences(const BackwardPlan& plan, cudaStream_t stream) {
  const BackwardCall& a = plan.call;
  const BackwardKernel& kernel = plan.kernel;
  ShortSequencesParams p{};
  if (!fill(p.main, kernel.config.for_short_sequences(), plan, a.d_o)) return cudaErrorInvalidValue;
  p.rows = row_operands(a);
  p.dq = row_tensor(a.dq);
  p.dk = row_tensor(a.dk);
  p.dv = row_tensor(a.dv);
  p.pack = plan.short_pack;
  p.lengths_q = a.lengths_q;
  p.lengths_k = a.lengths_k;
  p.sequences = int(a.sequences);
  const void* const entry =
      plan.short_pack.heads() > 1 ? kernel.packed_sequences : kernel.short_sequences;
  return launch(entry, unsigned(plan.grids.short_sequences), kWarpgroupSize,
                kernel.short_smem_bytes, &p, {}, stream);
}

// What the first kernel finds in the workspace.
cudaError_t prepare(const BackwardPlan& plan, const Arrays& arrays, void* workspace,
                    cudaStream_t stream) {
  const BackwardCall& a = plan.call;
  const BackwardConfig& c = plan.kernel.config;
  cudaError_t error = cudaSuccess;
  if (a.varlen) {
    error = list_tiles(a, arrays.k_tiles, a.k, a.lengths_k, a.lengths_q, c.keys_of_cluster(),
                       plan.tail_tiles, plan.k_blocks.in_all, stream);
  }
  if (a.varlen && error == cudaSuccess) {
    error = list_tiles(a, arrays.q_tiles, a.q, a.lengths_q, a.lengths_k, c.shape.block_m, 0,
                       plan.q_blocks.in_all, stream);
  }
  if (c.block_mask() && a.block_lists == nullptr && error == cudaSuccess) {
    cuda::BlockListParams lists = lists_in(plan, workspace);
    if (a.varlen) {
      lists.row_tiles = {arrays.q_tiles.sequences, arrays.q_tiles.num_entries};
      lists.column_tiles = {arrays.k_tiles.sequences, arrays.k_tiles.num_entries};
    }
    error = prepare_block_lists(lists, stream);
  }
  // Preprocess does not come to all query blocks of packed sequences: some are nobody's, and where
  // sequences overlap its list ends before the last. The main kernel would wait for ever for a
  // counter that was never cleared.
  const auto clear = [&](void* numbers) {
    static_assert(sizeof(float) == sizeof(int));
    const int64_t blocks = plan.q_blocks.of_entry * a.q.heads * a.q.batches;
    return cudaMemsetAsync(numbers, 0, size_t(blocks) * sizeof(float), stream);
  };
  if (arrays.sink_sums && error == cudaSuccess) error = clear(arrays.sink_sums);
  if (arrays.scratch.dq_semaphore && a.lengths_q.in_one_tensor && error == cudaSuccess) {
    error = clear(arrays.scratch.dq_semaphore);
  }
  if (arrays.dkv_accum.dk && error == cudaSuccess) {
    const size_t bytes = size_t(plan.workspace.dkv_accum_bytes);
    error = cudaMemsetAsync(arrays.dkv_accum.dk, 0, bytes, stream);
  }
  return error;
}

cudaError_t launch_postprocess(const void* kernel, PostprocessParams p, int64_t ctas, bool pdl,
                               cudaStream_t stream) {
  return launch(kernel, unsigned(ctas), kWarpgroupSize, 0, &p, {.pdl = pdl}, stream);
}

// From sums to dK and dV; dK's have the scale already.
cudaError_t launch_postprocess_dkv(const BackwardPlan& plan, const DkvAccum& accum,
                                   cudaStream_t stream) {
  const BackwardCall& a = plan.call;
  const auto params = [&](const TensorSpan& gradient, const float* sums) {
    return PostprocessParams{.gradient = row_tensor(gradient),
                             .accum = sums,
                             .sums = sums_of_splits(plan.step_splits()),
                             .sum_blocks = accum.blocks,
                             .tiles = {accum.numbers, a.seqlen_k, {}, false},
                             .scale = 1,
                             .scale_of_one_key = 1,
                             .adds = a.accumulate_dkv};
  };
  const cudaError_t error =
      launch_postprocess(plan.kernel.splits.postprocess_dk, params(a.dk, accum.dk),
                         plan.grids.postprocess_dk, true, stream);
  if (error != cudaSuccess) return error;
  return launch_postprocess(plan.kernel.splits.postprocess_dv, params(a.dv, accum.dv),
                            plan.grids.postprocess_dv, true, stream);
}

}  // namespace

cudaError_t launch_backward(const BackwardPlan& plan, void* workspace, cudaStream_t stream,
                            int launches, const ScoreGradientOperands* score) {
  if (plan.short_sequences) return launch_short_sequences(plan, stream);
  const BackwardCall& a = plan.call;
  const BackwardKernel& kernel = plan.kernel;
  const Arrays arrays(plan, workspace);
  const QueryScratch& scratch = arrays.scratch;
  const RowTiles tiles{scratch.numbers, a.seqlen_q, arrays.q_tiles.tiles(),
                       a.lengths_q.in_one_tensor};
  const int64_t preprocess = plan.grids.preprocess;
  cudaError_t error =
      launches & kPreprocess ? prepare(plan, arrays, workspace, stream) : cudaSuccess;
  if (error == cudaSuccess && launches & kPreprocess) {
    GatedPreprocessParams p{{row_operands(a), scratch, tiles, a.sink, arrays.sink_sums}, {}};
    if (a.has_gate()) p.gate = GateRows::of(a.gate, a.d_gate, row_tensor(arrays.d_o));
    error = launch(a.has_gate() ? kernel.gated_preprocess : kernel.preprocess, unsigned(preprocess),
                   kPreprocessThreads, 0, &p, {}, stream);
  }
  if (error == cudaSuccess && launches & kMain) {
    const bool pdl = launches & kPreprocess && preprocess > 0;
    error = launch_main(plan, score, arrays, workspace, pdl, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess) {
    const PostprocessParams p{.gradient = row_tensor(a.dq),
                              .accum = scratch.dq_accum,
                              .sums = 1,
                              .sum_blocks = 0,
                              .tiles = tiles,
                              .scale = a.gradient_scale,
                              .scale_of_one_key = a.gradient_scale_of_one_key,
                              .adds = a.accumulate_dq};
    error = launch_postprocess(kernel.postprocess, p, plan.grids.postprocess,
                               launches != kPostprocess, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess && arrays.dkv_accum.dk) {
    error = launch_postprocess_dkv(plan, arrays.dkv_accum, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess && a.d_sink) {
    error = sum_sink_gradients({arrays.sink_sums, int(a.q.batches), scratch.numbers.heads,
                                scratch.numbers.of_head, a.d_sink},
                               stream);
  }
  return error;
}

}  // namespace fa3::hopper
