// SPDX-License-Identifier: Apache-2.0
// From a plan to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch/launch_forward.h"

#include <algorithm>
#include <atomic>
#include <numbers>
#include <random>

#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/hopper/config/e4m3_tuning.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/scheduler/side_kernels.h"

namespace fa3::hopper {
namespace {

using cuda::array_at;

// Decode kernels load Q without TMA.
bool encode_decode_maps(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& v) {
  if (plan.kv_loader == KvPath::kCpAsync) return true;
  const Kernel& c = plan.kernel.config;
  const int rows = plan.kv_box_rows;
  return encode_slab_map(params.k_map, plan.call.k, c.types().stored, c.tiles_in_smem().loaded_k,
                         rows) &&
         encode_slab_map(params.v_map, v, c.types().stored, c.tiles_in_smem().loaded_v, rows);
}

bool encode_q_map(ForwardParams& params, const ForwardPlan& plan) {
  const Kernel& c = plan.kernel.config;
  const int heads = plan.tiling.pack.heads();
  return plan.q_is_clipped
             ? encode_clipped_queries(params.q_map, params.q_outside, plan.call.q, c.types().query,
                                      c.tiles_in_smem().q, kRowsPerWarpgroup, heads)
             : encode_tensor_map(params.q_map, plan.call.q, c.types().query, c.tiles_in_smem().q,
                                 kRowsPerWarpgroup, heads);
}

bool encode_o_map(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& o) {
  const Kernel& c = plan.kernel.config;
  if (!stages_rows(c)) return true;
  const tile::TileLayout rows = c.tiles_in_smem().staged_o;
  const int heads = plan.tiling.pack.heads();
  params.o_slabs_together = sends_slabs_together(c) && heads == 1 && o.columns == rows.columns;
  return params.o_slabs_together
             ? encode_slab_map(params.o_map, o, c.element, rows, cuda::kRowsPerWarp)
             : encode_tensor_map(params.o_map, o, c.element, rows, cuda::kRowsPerWarp, heads);
}

bool encode_maps(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& v_span) {
  const Kernel& c = plan.kernel.config;
  if (c.is_decode()) return encode_decode_maps(params, plan, v_span);
  if (!encode_q_map(params, plan)) return false;
  if (c.is_stream_k() && plan.kv_loader == KvPath::kCpAsync) return true;
  tile::TileLayout k = c.tiles_in_smem().loaded_k, v = c.tiles_in_smem().loaded_v;
  k.rows = plan.kv_box_rows;
  if (!c.e4m3()) v.rows = plan.kv_box_rows;
  const TensorSpan& k_span = plan.call.k;
  const bool k_done =
      c.clips_keys()
          ? encode_clipped_map(params.k_map, params.k_outside, k_span, c.types().stored, k)
          : encode_tensor_map(params.k_map, k_span, c.types().product, k, k.rows);
  if (!k_done) return false;
  return c.clips_keys() && !c.e4m3()
             ? encode_clipped_map(params.v_map, params.v_outside, v_span, c.types().stored, v)
             : encode_tensor_map(params.v_map, v_span, c.types().product, v, v.rows);
}

// Unlike any other's, and unlike what a workspace happens to hold.
uint64_t launch_number() {
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  return next.fetch_add(0x9e3779b97f4a7c15) >> SplitCounters::kBits;
}

void encode_output(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& o) {
  const ForwardCall& call = plan.call;
  params.before = call.before;
  params.output = {.o = row_tensor(o),
                   .lse = call.lse,
                   .pack = plan.tiling.pack,
                   .some_rows_see_no_key = call.some_rows_see_no_key(),
                   .o_is_float32 = o.element_bytes == sizeof(float),
                   .sink = call.sink};
}

void encode_scores(ForwardParams& params, const ForwardPlan& plan) {
  constexpr double kLog2E = std::numbers::log2e;
  const ForwardCall& call = plan.call;
  params.mask = call.mask;
  // A score function is given natural scores.
  params.scale_log2 = call.has_score_function ? call.scale : cuda::log2_scale(call.scale);
  // Scores of e4m3 are in log2 units by then.
  const double cap_scale = plan.kernel.config.e4m3() ? 1 / kLog2E : call.scale;
  if (call.softcap != 0) params.soft_cap = SoftCap::of(cap_scale, call.softcap);
  params.cache_scales = call.cache_scales;
  params.cache_is_e5m2 = call.cache_is_e5m2;
}

void encode_keys(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& v) {
  const ForwardCall& call = plan.call;
  params.k = row_tensor(call.k);
  params.packs_per_kv_head = call.heads_per_kv_head / plan.tiling.pack.heads();
  params.seqlen_q = call.seqlen_q;
  params.seqlen_k = call.seqlen_k;
  params.paged = {.table = call.places.page_table,
                  .table_stride = call.places.table_stride,
                  .page_size = int(call.places.page_size),
                  .box_rows = plan.kv_box_rows,
                  .num_pages = int(call.places.pages)};
  params.cp_async = plan.cp_async;
  params.cp_async.v.data = static_cast<const unsigned char*>(v.data);
  params.cp_async.v.columns = int(v.columns);
}

cuda::BlockListParams lists_in(const ForwardPlan& plan, void* workspace) {
  cuda::BlockListParams lists = plan.lists;
  if (plan.call.block_lists == nullptr) set_memory(lists, plan.workspace.lists, workspace);
  return lists;
}

void encode_work(ForwardParams& params, const ForwardPlan& plan, const TensorSpan& o,
                 void* workspace) {
  const ForwardWorkspace& w = plan.workspace;
  params.tile_counter = array_at<int>(workspace, w.tile_counter);
  params.order = plan.order;
  params.sequences = array_at<SequenceTiles>(workspace, w.sequences);
  params.num_entries = array_at<int>(workspace, w.num_entries);
  params.pair_blocks = plan.pair_blocks;
  if (plan.tiling.finds_own_tiles()) params.schedule = plan.schedule;
  if (plan.kernel.config.block_mask()) params.lists = row_lists(lists_in(plan, workspace));
  params.combines = array_at<CombineTile>(workspace, w.combines);
  if (plan.tiling.is_split()) {
    params.partials = {.o = array_at<float>(workspace, w.partial_o),
                       .sums = array_at<PartialSum>(workspace, w.partial_sums),
                       .rows = plan.partial_rows,
                       .columns = int(ceil_div(o.columns, kCopyColumns) * kCopyColumns)};
  }
  if (plan.combine == Combine::kLastCta || plan.combine == Combine::kOpener) {
    params.counts = {array_at<uint64_t>(workspace, w.counters), launch_number()};
  }
  params.clusters = {.size_log2 = plan.tiling.split.cluster_log2,
                     .parts_log2 = plan.tile_parts_log2};
}

// The tiles of sequences that have lengths of their own. Clears the tile counter too.
cudaError_t list_tiles(const ForwardPlan& plan, void* workspace, cudaStream_t stream) {
  const ForwardWorkspace& w = plan.workspace;
  VarlenMetadata list = plan.schedule.sequences;
  list.entries = array_at<SequenceTiles>(workspace, w.sequences);
  list.num_entries = array_at<int>(workspace, w.num_entries);
  list.tile_counter = array_at<int>(workspace, w.tile_counter);
  return prepare_varlen_metadata(list, stream);
}

// Clears the tile counter, with the list of tiles, those of key blocks that are made here, or
// alone; that of e4m3 operands alone is cleared by the kernel that prepares these.
cudaError_t prepare_scheduler(const ForwardPlan& plan, void* workspace, cudaStream_t stream) {
  const ForwardWorkspace& w = plan.workspace;
  int* counter = array_at<int>(workspace, w.tile_counter);
  const bool lists_tiles = plan.tiling.scheduler == Scheduler::kVarlenMetadata;
  if (plan.kernel.config.block_mask() && plan.call.block_lists == nullptr) {
    cuda::BlockListParams lists = lists_in(plan, workspace);
    if (lists_tiles) {
      const cudaError_t error = list_tiles(plan, workspace, stream);
      if (error != cudaSuccess) return error;
      lists.row_tiles = {array_at<SequenceTiles>(workspace, w.sequences),
                         array_at<int>(workspace, w.num_entries)};
    } else {
      lists.tile_counter = counter;
    }
    return prepare_block_lists(lists, stream);
  }
  if (plan.tiling.scheduler == Scheduler::kDynamicPersistent) {
    if (plan.kernel.config.e4m3()) return cudaSuccess;
    return cudaMemsetAsync(counter, 0, sizeof(int), stream);
  }
  return lists_tiles ? list_tiles(plan, workspace, stream) : cudaSuccess;
}

}  // namespace

cudaError_t launch_forward(const ForwardPlan& plan, const LaunchOperands& operands, void* workspace,
                           cudaStream_t stream) {
  const ForwardKernel& kernel = plan.kernel;
  if (plan.grid.x == 0) return cudaSuccess;
  ScoredForwardParams scored{};
  ForwardParams& params = scored.forward;
  if (operands.score != nullptr) scored.score = *operands.score;
  params.q = row_tensor(plan.call.q);
  params.q_is_clipped = plan.q_is_clipped;
  params.e4m3 = operands.e4m3;
  params.heads_in_work = operands.heads_in_work;
  params.dropout = cuda::DropoutParams::of(plan.call.dropout);
  params.outputs = {operands.gate, plan.call.max_logit};
  encode_output(params, plan, operands.o);
  encode_scores(params, plan);
  encode_keys(params, plan, operands.v);
  encode_work(params, plan, operands.o, workspace);
  if (!encode_maps(params, plan, operands.v) || !encode_o_map(params, plan, operands.o)) {
    return cudaErrorInvalidValue;
  }

  cudaError_t error = prepare_scheduler(plan, workspace, stream);
  if (error != cudaSuccess) return error;
  error = launch(kernel.function, plan.grid, kernel.config.threads(), kernel.smem_bytes, &scored,
                 {.pdl = plan.pdl, .cluster = plan.cluster, .may_cluster = true}, stream);
  if (error != cudaSuccess || plan.combine != Combine::kKernel) return error;
  return combine_splits({.partials = params.partials,
                         .combines = params.combines,
                         .num_combines = plan.num_combines,
                         .most_splits = plan.most_splits,
                         .output = params.output,
                         .element = kernel.config.element,
                         .gate = operands.gate},
                        stream);
}

cudaError_t launch_forward(const ForwardPlan& plan, const ScoreOperands* score, void* workspace,
                           cudaStream_t stream) {
  const ForwardCall& call = plan.call;
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < plan.num_launches && error == cudaSuccess; ++i) {
    const int64_t first = i * kMaxColumnsV;
    LaunchOperands operands{.v = call.v, .o = call.o, .gate = call.gate, .score = score};
    const auto move_to = [first](TensorSpan& span) {
      span.data = static_cast<std::byte*>(span.data) + first * span.element_bytes;
    };
    move_to(operands.o);
    operands.o.columns = std::min(call.head_dim_v - first, kMaxColumnsV);
    if (call.gate.kind != Gate::kRows) {
      RowTensor& logits = operands.gate.logits;
      logits.data = static_cast<std::byte*>(logits.data) + first * bytes_of(call.gate.type);
      logits.columns = int(operands.o.columns);
    }
    if (call.has_keys) {
      move_to(operands.v);
      operands.v.columns = operands.o.columns;
    }
    error = launch_forward(plan, operands, workspace, stream);
  }
  return error;
}

}  // namespace fa3::hopper
