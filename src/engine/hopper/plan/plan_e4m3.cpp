// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/plan_e4m3.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/macros.h"
#include "engine/hopper/fp8/prepare_e4m3.h"
#include "engine/hopper/host/tensor_map.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kMaxGrid = 65535;  // heads, and batches, of the kernels that prepare

TensorSpan transposed_span(const TensorSpan& v, int64_t sequences, int64_t keys) {
  return {.batches = sequences,
          .rows = v.columns,
          .heads = v.heads,
          .columns = keys,
          .batch_stride = v.heads * v.columns * keys,
          .row_stride = keys,
          .head_stride = v.columns * keys,
          .element_bytes = 1};
}

// V that is given transposed. What lies behind the last places is zeros to TMA.
TensorSpan given_transposed_span(const Problem& p, const TensorSpan& v) {
  TensorSpan span{.data = v.data,
                  .batches = p.batch,
                  .rows = v.columns,
                  .heads = v.heads,
                  .columns = transposed_places(p.lengths_k.max),
                  .batch_stride = v.batch_stride,
                  .row_stride = p.v_transposed.channel_stride,
                  .head_stride = v.head_stride,
                  .element_bytes = 1};
  return span;
}

// Without keys nothing is read, and zeros are prepared for the kernel.
bool takes_v_transposed(const Problem& p, const ForwardCall& call) {
  return p.v_transposed.on && call.has_keys;
}

// Where rows see nothing, a kernel of all masks and lengths may visit the block behind the last
// key.
int padded_keys(const Kernel& c, int keys, int step) {
  const int blocks = c.general() ? keys / step + 1 : std::max(1, (keys + step - 1) / step);
  return blocks * step;
}

// On how many SMs a CTA goes on ahead of the tiles: enough to stay ahead, and no more, for the
// tiles lack these SMs. While an SM transposes a block of keys, another computes about `rows` query
// rows with such a block, so the more rows see a key, the fewer SMs are enough. 0: V is better
// transposed beforehand, as too many would be needed. Measured, as the bounds are: docs/lab/fp8.md.
int choose_late_ctas(const Kernel& c, const ForwardCall& call, int num_sms) {
  const bool wide = c.shape.head_dim_v > 128;
  const int64_t rows = wide ? 80 : 52;
  const int fewest = num_sms / 16, most = num_sms / (wide ? 6 : 8);
  const int64_t enough = num_sms * rows / std::max<int64_t>(rows_of_key(call), 1);
  if (wide && enough > most) return 0;
  return int(std::clamp<int64_t>(enough, fewest, most));
}

// Heads are ahead of the tiles if these come to them in one order, and more than once to an SM.
TransposeOrder transpose_order(const E4m3Plan& plan, int num_sms) {
  const ForwardPlan& forward = plan.forward;
  const int64_t heads = plan.sequences * plan.v.heads;
  TransposeOrder order{.heads = int(heads), .parts_of_head = plan.padded_keys / kPreparedKeys};
  order.first_heads = order.heads;
  const Kernel& c = forward.kernel.config;
  const bool by_tma = plan.transposes_before() && tensor_map_obstacle(plan.v) == nullptr;
  if (c.general() || !forward.call.has_keys || !by_tma ||
      heads * order.parts_of_head > TransposeOrder::kMostParts) {
    return order;
  }
  const int late_ctas = choose_late_ctas(c, forward.call, num_sms);
  if (late_ctas == 0) return order;
  order.first_heads = 0;
  const int packs_per_kv_head = forward.order.num_packs / int(plan.v.heads);
  const int first_tiles = std::min(int(forward.grid.x), forward.order.num_tiles());
  for (int tile = 0; tile < first_tiles; ++tile) {
    const TileIndex index = forward.order.tile(tile);
    const int head = index.batch * int(plan.v.heads) + index.pack / packs_per_kv_head;
    order.first_heads = std::max(order.first_heads, head + 1);
  }
  order.ctas = std::min(num_sms, order.parts());
  if (order.goes_on_late()) order.late_ctas = std::min(late_ctas, order.ctas);
  return order;
}

void lay_out(E4m3Plan* plan) {
  const int64_t heads = plan->sequences * plan->v.heads, keys = plan->padded_keys;
  WorkspaceAllocator allocator;
  plan->transposed = cuda::place<uint8_t>(
      allocator, plan->transposes_before() ? heads * plan->v.columns : 0, keys);
  plan->key_scales = cuda::place<KeyScales>(allocator, heads, keys / kDescaleRows);
  plan->value_scales = cuda::place<float>(allocator, heads);
  plan->parts_done = cuda::place<int>(allocator, plan->order.goes_on_late() ? heads : 0);
  plan->forward_workspace = cuda::place<uint8_t>(allocator, plan->forward.workspace.bytes);
  plan->workspace_bytes = allocator.bytes();
}

}  // namespace

Status check_e4m3_tensors(const Problem& p) {
  // What the keys' mean adds to a score is added to the LSE alone, behind the kernel.
  if (p.k_quantization.mean.data && (p.softcap != 0.0f || p.has_sink)) {
    return unsupported("k_mean beside a softcap or sink logits");
  }
  if (p.k_quantization.mean.data && p.max_logit.on) return unsupported("k_mean beside max_logit");
  if (p.batch > kMaxGrid || p.heads_q > kMaxGrid) {
    return unsupported("more than ", kMaxGrid, " sequences or heads of float8_e4m3");
  }
  return {};
}

Status check_e4m3_layouts(const Request& r) {
  const Problem& p = r.problem;
  const ForwardCall& a = r.call;
  for (const auto& [name, tensor] : {std::pair{"q", a.q}, {"k", a.k}, {"o", a.o}}) {
    const char* obstacle = tensor_map_obstacle(tensor);
    if (obstacle) return unsupported(name, ": ", obstacle);
  }
  constexpr int64_t kWord = 4;  // V is read by words
  const TensorSpan& v = a.v;
  if (takes_v_transposed(p, a)) {
    const char* obstacle = tensor_map_obstacle(given_transposed_span(p, v));
    return obstacle ? unsupported("v: ", obstacle) : Status{};
  }
  if (reinterpret_cast<uintptr_t>(v.data) % kWord != 0 || v.row_stride % kWord != 0 ||
      v.head_stride % kWord != 0 || v.batch_stride % kWord != 0) {
    return unsupported("v: address and strides must be multiples of 4 bytes");
  }
  return {};
}

E4m3Plan plan_e4m3_launch(const ForwardKernel& kernel, const Request& request, Tiling tiling) {
  const Kernel& c = kernel.config;
  const Problem& problem = request.problem;
  const ForwardCall& call = request.call;
  E4m3Plan plan{.forward = plan_launch(kernel, call, tiling, request.num_sms),
                .v = call.v,
                .v_is_transposed = takes_v_transposed(problem, call),
                .q_quantization = problem.q_quantization,
                .k_quantization = problem.k_quantization,
                .v_quantization = problem.v_quantization};
  if (call.has_no_queries()) return plan;
  // Rows of packed queries that no sequence owns are computed, as those of one without keys.
  plan.sequences = int(std::max<int64_t>(call.sequences, 1));
  // Whole blocks of keys of either kernel. No kernel has blocks of no keys.
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  plan.key_step = std::lcm(kPreparedKeys, c.shape.block_n);
  plan.padded_keys = padded_keys(c, call.seqlen_k, plan.key_step);
  plan.order = transpose_order(plan, request.num_sms);
  if (plan.order.goes_on_late()) {  // some CTAs start later
    plan.parts_done_of_head = plan.order.parts_of_head * warps_of_part(plan.v.columns);
    tiling.scheduler = Scheduler::kDynamicPersistent;
    plan.forward = plan_launch(kernel, call, tiling, request.num_sms);
  }
  // The list of varlen tiles is made by a kernel between the two.
  plan.forward.pdl = plan.forward.tiling.scheduler != Scheduler::kVarlenMetadata;
  if (plan.v_is_transposed) {
    plan.forward.call.v = given_transposed_span(problem, call.v);
  } else if (plan.transposes_before()) {
    plan.forward.call.v = transposed_span(call.v, plan.sequences, plan.padded_keys);
  }
  lay_out(&plan);
  return plan;
}

const char* words_of_values(const E4m3Plan& plan) {
  if (plan.v_is_transposed) return "; V is given transposed";
  if (plan.transposes_in_kernel()) return "";
  return plan.order.goes_on_late() ? "; a kernel transposes V ahead of the tiles"
                                   : "; a kernel transposes V beforehand";
}

}  // namespace fa3::hopper
