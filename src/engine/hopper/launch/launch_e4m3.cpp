// SPDX-License-Identifier: Apache-2.0
// See launch_forward.h. Next: prepare_e4m3.cu.
#include "engine/hopper/launch/launch_forward.h"

#include "engine/cuda/host/launch.h"
#include "engine/hopper/fp8/transpose_ahead.h"
#include "engine/hopper/host/tensor_map.h"

namespace fa3::hopper {
namespace {

using cuda::array_at;

int* parts_done_of(const E4m3Plan& plan, void* workspace) {
  return plan.order.goes_on_late() ? array_at<int>(workspace, plan.parts_done) : nullptr;
}

}  // namespace

cudaError_t prepare_e4m3_launch(const E4m3Plan& plan, void* workspace, cudaStream_t stream) {
  const ForwardCall& call = plan.forward.call;
  const bool draws = plan.forward.tiling.scheduler == Scheduler::kDynamicPersistent;
  const E4m3Preparation preparation{
      .v = row_tensor(plan.v),
      .sequences = int(call.sequences),
      .kv_heads = int(plan.v.heads),
      .lengths = call.lengths_k,
      .places = call.places,
      .padded_keys = plan.padded_keys,
      .step = plan.key_step,
      .key_scales = plan.k_quantization.descale,
      .value_scales = plan.v_quantization.descale,
      .transposed = array_at<uint8_t>(workspace, plan.transposed),
      .prepared = array_at<KeyScales>(workspace, plan.key_scales),
      .largest_of_heads = array_at<float>(workspace, plan.value_scales),
      .tile_counter = draws ? array_at<int>(workspace, plan.forward_workspace +
                                                           plan.forward.workspace.tile_counter)
                            : nullptr};
  if (!plan.transposes_before()) return prepare_scales(preparation, call.seqlen_k, stream);
  if (!plan.order.goes_on_late()) return prepare_e4m3(preparation, stream);
  TransposeAhead ahead{.values = preparation,
                       .keys = call.seqlen_k,
                       .order = plan.order,
                       .parts_done = parts_done_of(plan, workspace)};
  TensorSpan transposed = call.v;
  transposed.data = preparation.transposed;
  const bool encoded =
      encode_tensor_map(ahead.v, plan.v, Element::kE4m3, kValueBox, kValueBox.rows) &&
      encode_tensor_map(ahead.transposed, transposed, Element::kE4m3, kSquareBox, kSquareBox.rows);
  return encoded ? transpose_ahead(ahead, stream) : cudaErrorInvalidValue;
}

cudaError_t launch_prepared_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream) {
  const ForwardCall& call = plan.forward.call;
  LaunchOperands operands{
      .v = call.v,
      .o = call.o,
      .gate = call.gate,
      .e4m3 = {.keys = array_at<KeyScales>(workspace, plan.key_scales),
               .value_scales = array_at<float>(workspace, plan.value_scales),
               .sequences = plan.sequences,
               .kv_heads = int(plan.v.heads),
               .blocks = plan.padded_keys / kDescaleRows,
               .query = plan.q_quantization.descale,
               .value_mean = plan.v_quantization.mean},
      .heads_in_work = {parts_done_of(plan, workspace), plan.parts_done_of_head}};
  if (plan.transposes_before()) operands.v.data = array_at<uint8_t>(workspace, plan.transposed);
  const cudaError_t error = launch_forward(
      plan.forward, operands, array_at<uint8_t>(workspace, plan.forward_workspace), stream);
  const ChannelMeans<const float>& k_mean = plan.k_quantization.mean;
  if (error != cudaSuccess || k_mean.data == nullptr || call.lse.data == nullptr) return error;
  return add_mean_scores({.q = row_tensor(call.q),
                          .batches = int(call.q.batches),
                          .heads = int(call.q.heads),
                          .rows = int(call.q.rows),
                          .sequences = int(call.sequences),
                          .lengths_q = call.lengths_q,
                          .heads_per_kv_head = call.heads_per_kv_head,
                          .query_scales = plan.q_quantization.descale,
                          .mean = k_mean,
                          .scale = call.scale,
                          .lse = call.lse},
                         stream);
}

cudaError_t launch_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream) {
  const cudaError_t error = prepare_e4m3_launch(plan, workspace, stream);
  return error == cudaSuccess ? launch_prepared_e4m3(plan, workspace, stream) : error;
}

}  // namespace fa3::hopper
