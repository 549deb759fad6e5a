// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/launch.h"

#include <algorithm>

#include "engine/ampere/forward_params.h"
#include "engine/ampere/plan/copy_width.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {
namespace {

using cuda::row_tensor;
using cuda::TensorSpan;

bool ends_with_chunk(int64_t columns) {
  return columns * 2 % cuda::kChunkBytes == 0;
}

CopiedRows copied_rows(const TensorSpan& t, int width, bool paged = false) {
  const bool in_chunks = width == kWidestCopy && ends_with_chunk(t.columns) && !paged;
  return {row_tensor(t), width, in_chunks};
}

cuda::ForwardOutput partial_output(const ForwardPlan& plan, void* workspace) {
  const PartialResults& partials = plan.partials;
  WorkspaceAllocator allocator(workspace);
  const auto [o, lse] = partials.carve(allocator);
  const int64_t row = partials.heads * partials.pitch;
  return {.o = {.data = o, .strides = {partials.rows * row, partials.pitch, row}, .columns = 0},
          .lse = {.data = lse, .strides = {partials.heads * partials.rows, partials.rows, 1}},
          .pack = plan.schedule.pack,
          .some_rows_see_no_key = true,
          .o_is_float32 = true,
          .sink = plan.call.sink};
}

cuda::ForwardOutput output_of(const ForwardPlan& plan, void* workspace) {
  if (plan.partials.any()) return partial_output(plan, workspace);
  const ForwardCall& call = plan.call;
  return {.o = row_tensor(call.o),
          .lse = call.lse,
          .pack = plan.schedule.pack,
          .some_rows_see_no_key = call.some_rows_see_no_key(),
          .o_is_float32 = call.o.element_bytes == sizeof(float),
          .o_is_aligned = plan.o_width == kWidestCopy,
          .sink = call.sink};
}

ForwardParams params_of(const ForwardPlan& plan, void* workspace) {
  const ForwardCall& call = plan.call;
  ForwardParams params{
      .q = copied_rows(call.q, plan.q_width),
      .k = copied_rows(call.k, plan.k_width, call.places.paged()),
      .v = copied_rows(call.v, plan.v_width, call.places.paged()),
      .pages = {.table = call.places.page_table,
                .table_stride = call.places.table_stride,
                .page_size = int(call.places.page_size),
                .num_pages = int(call.places.pages)},
      .schedule = plan.schedule,
      .packs_per_kv_head = call.heads_per_kv_head / plan.schedule.pack.heads(),
      .mask = call.mask,
      .scale_log2 = call.has_score_function ? call.scale : cuda::log2_scale(call.scale),
      .capped = call.softcap != 0,
      .soft_cap = {},
      .dropout = cuda::DropoutParams::of(call.dropout),
      .output = output_of(plan, workspace),
      .partial_batches = plan.partials.any() ? int(plan.partials.batches) : 0,
      .cache_scales = call.cache_scales,
      .cache_is_e5m2 = call.cache_is_e5m2,
      .output_is_plain = false,
      .block_mask = call.block_mask,
      .outputs = {call.gate, call.max_logit}};
  if (params.capped) {
    params.soft_cap = cuda::SoftCap::of(call.scale, call.softcap);
    params.scale_log2 = 1.0f;
  }
  return params;
}

}  // namespace

cudaError_t launch_forward(const ForwardPlan& plan, const cuda::ScoreCaptures* captures,
                           void* workspace, cudaStream_t stream) {
  const ForwardConfig& c = plan.kernel.config;
  const ForwardCall& call = plan.call;
  ScoredForwardParams scored{.forward = params_of(plan, workspace), .captures = {}};
  if (captures != nullptr) scored.captures = *captures;
  ForwardParams& params = scored.forward;
  void* const whole_o = params.output.o.data;
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < plan.num_launches && error == cudaSuccess; ++i) {
    const int64_t first = i * cuda::kMaxColumnsV;
    const int columns = int(std::min(call.head_dim_v - first, cuda::kMaxColumnsV));
    const auto move_to = [&](cuda::RowTensor& tensor, void* data, int64_t element_bytes) {
      tensor.data = static_cast<std::byte*>(data) + first * element_bytes;
      tensor.columns = columns;
    };
    move_to(params.output.o, whole_o, params.output.o_is_float32 ? sizeof(float) : 2);
    if (call.has_keys) move_to(params.v.tensor, call.v.data, call.v.element_bytes);
    if (call.gate.kind != cuda::Gate::kRows) {
      move_to(params.outputs.gate.logits, call.gate.logits.data, bytes_of(call.gate.type));
    }
    params.v.in_chunks =
        plan.v_width == kWidestCopy && ends_with_chunk(columns) && !call.places.paged();
    params.output_is_plain =
        !params.output.o_is_float32 && params.output.o_is_aligned && ends_with_chunk(columns);
    error = cuda::launch(plan.kernel.function, unsigned(plan.num_ctas()), c.threads(),
                         c.smem_bytes(), &scored, {}, stream);
  }
  return error;
}

}  // namespace fa3::ampere
