// SPDX-License-Identifier: Apache-2.0
// See launch_e4m3.h. Next: prepare_e4m3.cu.
#include "engine/hopper/launch/launch_e4m3.h"

#include <numeric>

#include "core/workspace.h"
#include "engine/hopper/fp8/prepare_e4m3.h"
#include "engine/hopper/host/launch.h"
#include "engine/hopper/plan/choose_split.h"

namespace fa3::hopper {
namespace {

// Whole blocks of keys of either kernel, one more than all keys fill.
int step_of(const ForwardConfig& c) {
  return std::lcm(kPreparedKeys, c.block_n);
}

int padded_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t step = step_of(c);
  // No kernel has blocks of no keys. NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  return int((launch.seqlen_k / step + 1) * step);
}

// Rows of packed queries that no sequence owns are computed, as those of one without keys.
int num_sequences(const ForwardLaunch& launch) {
  return int(std::max<int64_t>(launch.sequences, 1));
}

struct Workspace {
  uint8_t* transposed;
  KeyScales* keys;
  float* value_scales;
  void* forward;  // of launch_forward.h
};

Workspace allocate(const ForwardConfig& c, const ForwardLaunch& launch,
                   WorkspaceAllocator& allocator) {
  const int64_t heads = num_sequences(launch) * launch.k.heads, keys = padded_keys(c, launch);
  return {.transposed = allocator.take<uint8_t>(heads * launch.v.columns, keys),
          .keys = allocator.take<KeyScales>(heads, keys / FA3_DESCALE_ROWS),
          .value_scales = allocator.take<float>(heads),
          .forward = allocator.take<uint8_t>(forward_workspace_bytes(c, launch))};
}

TensorSpan transposed_span(const TensorSpan& v, void* data, int64_t sequences, int64_t keys) {
  return {.data = data,
          .batches = sequences,
          .rows = v.columns,
          .heads = v.heads,
          .columns = keys,
          .batch_stride = v.heads * v.columns * keys,
          .row_stride = keys,
          .head_stride = v.columns * keys,
          .element_bytes = 1};
}

}  // namespace

PackGqa choose_e4m3_pack(const ForwardConfig& config, const E4m3Launch& launch) {
  const Descales<const float>& q = launch.q.descale;
  const bool shared = q.data == nullptr || q.head_stride == 0 ||
                      q.heads_per_scale % launch.forward.heads_per_kv_head == 0;
  return shared ? choose_pack(config, launch.forward) : PackGqa{};
}

int64_t e4m3_workspace_bytes(const ForwardConfig& config, const E4m3Launch& launch) {
  return bytes_of(
      [&](WorkspaceAllocator& allocator) { allocate(config, launch.forward, allocator); });
}

cudaError_t prepare_e4m3_launch(const ForwardKernel& kernel, E4m3Launch* launch,
                                cudaStream_t stream) {
  ForwardLaunch& a = launch->forward;
  WorkspaceAllocator allocator(a.workspace);
  const Workspace workspace = allocate(kernel.config, a, allocator);
  const int keys = padded_keys(kernel.config, a);
  const E4m3Preparation preparation{.v = row_tensor(a.v),
                                    .sequences = int(a.sequences),
                                    .kv_heads = int(a.v.heads),
                                    .lengths = a.lengths_k,
                                    .places = a.places,
                                    .padded_keys = keys,
                                    .step = step_of(kernel.config),
                                    .key_scales = launch->k.descale,
                                    .value_scales = launch->v.descale,
                                    .transposed = workspace.transposed,
                                    .prepared = workspace.keys,
                                    .largest_of_heads = workspace.value_scales};
  a.e4m3 = {.keys = workspace.keys,
            .value_scales = workspace.value_scales,
            .sequences = num_sequences(a),
            .kv_heads = int(a.v.heads),
            .blocks = keys / FA3_DESCALE_ROWS,
            .query = launch->q.descale,
            .value_mean = launch->v.mean};
  a.v = transposed_span(a.v, workspace.transposed, num_sequences(a), keys);
  a.workspace = workspace.forward;
  return prepare_e4m3(preparation, stream);
}

cudaError_t launch_prepared_e4m3(const ForwardKernel& kernel, const E4m3Launch& launch,
                                 cudaStream_t stream) {
  const ForwardLaunch& a = launch.forward;
  const cudaError_t error = launch_forward(kernel, a, stream);
  if (error != cudaSuccess || launch.k.mean.data == nullptr || a.lse.data == nullptr) return error;
  return add_mean_scores({.q = row_tensor(a.q),
                          .batches = int(a.q.batches),
                          .heads = int(a.q.heads),
                          .rows = int(a.q.rows),
                          .heads_per_kv_head = a.heads_per_kv_head,
                          .query_scales = launch.q.descale,
                          .mean = launch.k.mean,
                          .scale = a.scale,
                          .lse = a.lse},
                         stream);
}

}  // namespace fa3::hopper
