// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/plan_forward.h"

#include <algorithm>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/host/device.h"
#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select.h"
#include "engine/hopper/plan/select/serving.h"

namespace fa3::hopper {
namespace {

// Lists and lengths of sequences have orders of their own.
TilesTogether together_in(const Problem& p, const ForwardCall& call) {
  if (p.score == nullptr || p.block_mask.on || call.varlen) return {};
  return choose_together(*p.score, call.q.heads, call.q.batches);
}

Status check_layouts(const Request& r) {
  if (r.needs.has(Need::kE4m3)) return check_e4m3_layouts(r);
  const auto check = [](const char* name, const TensorSpan& tensor) -> Status {
    const char* obstacle = tensor_map_obstacle(tensor);
    return obstacle ? unsupported(name, ": ", obstacle) : Status{};
  };
  FA3_TRY(check("q", r.call.q));
  FA3_TRY(check("k", r.call.k));
  FA3_TRY(check("v", r.call.v));
  return check("o", r.call.o);
}

// First what no kernel could change: types, scales, and how many rows there are.
Status check(const Request& r) {
  const Problem& p = r.problem;
  if (p.dtype == DType::float8_e4m3) {
    FA3_TRY(check_e4m3_tensors(p));
  } else if (p.dtype == DType::float16 || p.dtype == DType::bfloat16) {
    FA3_TRY(cuda::check_cache_scales(p));
  } else {
    return unsupported(name_of(p.dtype), " is not among its element types (float16, bfloat16)");
  }
  FA3_TRY(check_row_numbers(p));
  return check_served(r);
}

std::string split_words(const ForwardPlan& plan) {
  const Kernel& c = plan.kernel.config;
  const auto& [pack, scheduler, split] = plan.tiling;
  if (scheduler == Scheduler::kDirect) return "; single wave: one CTA per tile";
  if (scheduler == Scheduler::kFixedSplit) {
    return concat("; split-KV: up to ", split.num_splits, " splits per tile");
  }
  if (scheduler != Scheduler::kStreamK) return "";
  const bool per_tile = c.is_single_sequence();
  const int64_t ranges = split.ctas / (per_tile ? num_split_tiles(c, plan.call, pack) : 1);
  const char* plural = ranges == 1 ? "" : "s";
  const std::string ctas = plan.cluster == 1
                               ? concat(ranges, " CTA", plural)
                               : concat(ranges, " cluster", plural, " of ", plan.cluster, " CTAs");
  return per_tile ? concat("; split-KV: ", ctas, " per tile")
                  : concat("; split-KV: stream-K over ", ctas,
                           split.in_pairs ? ", causal tiles in pairs of equal length" : "");
}

std::string reasons(const Problem& problem, const ForwardPlan& plan,
                    const std::string& why_the_row) {
  const Kernel& c = plan.kernel.config;
  std::string why = concat("kernel for head dims up to ", c.shape.head_dim, " and ",
                           c.shape.head_dim_v, ": ", why_the_row);
  if (c.dequantizes()) {
    why +=
        concat("; Q, K and V become float16 ", c.is_decode() ? "in registers" : "in shared memory");
  }
  if (plan.kv_loader == KvPath::kCpAsync) why += "; cp.async loads K and V";
  if (const int heads = plan.tiling.pack.heads(); heads > 1) {
    why += concat("; PackGQA: ", heads, " query heads share a tile");
  }
  if (const TilesTogether& t = plan.together; t.count() > 1) {
    why += concat("; tiles of ", t.count(), t.batches > 1 ? " sequences" : " heads",
                  " that read one tile of the score function's tensor come together");
  }
  why += split_words(plan);
  if (plan.call.block_lists != nullptr) why += kListsBefore;
  if (plan.combine == Combine::kLastCta) why += ", combined in the kernel";
  if (plan.combine == Combine::kOpener) why += ", combined by the CTA that opens a tile";
  if (problem.batch_invariant && !c.e4m3()) why += "; batch-invariant";
  if (c.outputs.any()) why += "; compiled at run time";
  if (plan.num_launches > 1) {
    why += concat("; V in ", plan.num_launches, " launches of ", kMaxColumnsV, " columns");
  }
  return why;
}

// What the kernels cannot number.
Status check_counts(const ForwardPlan& plan, int64_t tiles) {
  if (tiles > kMaxTiles / plan.tiling.split.num_splits) {
    return unsupported("more than 2^30 query tiles, or splits of them");
  }
  const PackGqa pack = plan.tiling.pack;
  if (pack.rows(plan.call.q.rows) > kMaxRows) {
    return unsupported("more than 2^30 rows of queries times the ", pack.heads(),
                       " heads that share a tile");
  }
  return {};
}

void describe(const ForwardPlan& decided, int64_t tiles, Plan* plan) {
  const auto& [pack, scheduler, split] = decided.tiling;
  const bool is_stream_k = scheduler == Scheduler::kStreamK;
  plan->engine = "hopper";
  plan->decided.store(decided);
  plan->block_q = decided.kernel.config.shape.block_m;
  plan->block_k = decided.kernel.config.shape.block_n;
  plan->packed_heads = pack.heads();
  plan->num_splits = is_stream_k ? 0 : split.num_splits;
  plan->num_tasks = is_stream_k ? split.ctas : tiles * split.num_splits;
  plan->workspace_bytes = decided.workspace.bytes;
  if (decided.lists.mask.on && !decided.call.varlen) {
    plan->block_list_bytes = cuda::block_list_bytes(decided.lists, cuda::ListsOf::kForward);
  }
}

}  // namespace

bool continues(const Problem& p) {
  return p.partial.on && is_served(request_of(p));
}

Status check_forward(const Problem& p) {
  return check(request_of(p));
}

Status plan_forward(const Problem& problem, Plan* plan) {
  Request request = request_of(problem);
  FA3_TRY(check(request));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  FA3_TRY(check_layouts(request));
  FA3_TRY(count_free_sms(problem, &request.num_sms));
  const ForwardCall& call = request.call;
  const int num_sms = request.num_sms;
  const auto& [row, tiling] = select(request);
  if (row == nullptr) return refuse_many_queries(request);
  FA3_TRY(check_score(request, *row));
  const bool is_e4m3 = row->kernel.e4m3();
  const Element element = element_of(is_e4m3 ? problem.o.dtype : problem.dtype);
  ForwardKernel kernel = forward_kernel_at(*row, element, call.outputs());
  if (problem.score) {
    kernel.config = with_score(kernel.config, *problem.score, request.captured_tile);
  }
  ForwardPlan decided = plan_launch(kernel, call, tiling, num_sms, together_in(problem, call));
  decided.captured_tile = request.captured_tile;
  const Kernel& c = kernel.config;
  const int64_t tiles = num_tiles(c, call, tiling.pack);
  FA3_TRY(check_counts(decided, tiles));
  describe(decided, tiles, plan);
  const char* of_values = "";
  if (is_e4m3) {
    const E4m3Plan e4m3 = plan_e4m3_launch(kernel, request, tiling);
    plan->decided.store(e4m3);
    plan->workspace_bytes = e4m3.workspace_bytes;
    of_values = words_of_values(e4m3);
  }
  if (plan->wants_words) {
    plan->kernel = concat("forward ", name_of(problem.dtype), " d", c.shape.head_dim, "/",
                          c.shape.head_dim_v, " ", c.shape.block_m, "x", c.shape.block_n,
                          mask_name(call.mask), c.block_mask() ? " block mask" : "",
                          problem.partial.on ? " continued" : "", c.dropout() ? " dropout" : "",
                          c.gated() ? " gate" : "", c.outputs.max_logit ? " max logit" : "",
                          problem.score ? " with a score function" : "");
    plan->why = reasons(problem, decided, concat(row->why, of_values));
  }
  return {};
}

}  // namespace fa3::hopper
