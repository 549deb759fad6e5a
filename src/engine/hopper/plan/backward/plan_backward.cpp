// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/backward/plan_backward.h"

#include <algorithm>
#include <span>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/backward/backward_plan.h"
#include "engine/hopper/plan/forward_call.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 28;  // numbers of CTAs are 31-bit

Status check_layouts(const BackwardCall& a) {
  const struct {
    const char* name;
    const TensorSpan& tensor;
  } all[] = {{"q", a.q},     {"k", a.k},   {"v", a.v},   {"o", a.o},
             {"d_o", a.d_o}, {"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}};
  for (const auto& [name, tensor] : all) {
    const char* obstacle = tensor_map_obstacle(tensor);
    if (obstacle) return unsupported(name, ": ", obstacle);
  }
  return {};
}

// Only preprocess sees sinks: the main kernel is compiled for the rest of the problem. One that
// keeps slopes of a score function, or scores, keeps them where others keep P for a softcap.
Variant main_variant(const BackwardProblem& p) {
  if (p.score != nullptr && cuda::keeps_scores_or_slopes(*p.score)) return Variant::kCapped;
  if (p.block_mask.on) return variant_of_lists(p);
  Problem without_sink = p;
  without_sink.has_sink = false;
  return variant_of(without_sink);
}

bool adds_gradients(const fa3_score_function& score) {
  const std::span tensors(score.tensors, size_t(score.num_tensors));
  return std::ranges::any_of(tensors, [&](const fa3_captured_tensor& t) {
    return t.gradient != nullptr && &t != cuda::tensor_with_stored_gradient(score);
  });
}

Status check_score_gradients(const BackwardProblem& p) {
  if (p.score == nullptr) return {};
  const bool keeps = cuda::keeps_scores_or_slopes(*p.score);
  if (p.dropout.on() && (keeps || std::max(p.head_dim, p.head_dim_v) > 128)) {
    return unsupported(
        "gradients with dropout_p beside a score function that has a slope or whose gradients use "
        "the score, or beside one for head dims beyond 128");
  }
  if (keeps && p.block_mask.on && is_varlen(p)) {
    return unsupported(
        "gradients beside block_mask and lengths of sequences, where the score function has a "
        "slope");
  }
  if (p.score->gradients == nullptr) return {};
  if (cuda::tensor_with_stored_gradient(*p.score) != nullptr) {
    const char* obstacle =
        std::max(p.head_dim, p.head_dim_v) > 128
            ? "head dims are beyond 128"
            : stored_gradient_obstacle(*p.score, p.lengths_q.max, p.lengths_k.max);
    if (obstacle != nullptr) {
      return unsupported("stores_gradient of the score function's element: ", obstacle);
    }
  }
  if (p.deterministic && adds_gradients(*p.score)) {
    return unsupported("gradients of captured tensors in one order (deterministic)");
  }
  if (keeps && std::max(p.head_dim, p.head_dim_v) > 128) {
    return unsupported(
        "gradients of captured tensors for head dims beyond 128, where the score "
        "function has a slope");
  }
  return {};
}

bool has_wide_keys(const BackwardProblem& p) {
  return p.dk.dtype != p.dtype;
}

// Score functions are compiled for rows of all calls.
std::optional<DenseCall> dense_call(const BackwardProblem& p, Variant variant) {
  const bool is_plain = variant == Variant::kDense && !p.block_mask.on && !p.dropout.on() &&
                        p.score == nullptr && !has_wide_keys(p);
  if (!is_plain) return {};
  return DenseCall{.queries = p.lengths_q.max,
                   .keys = p.lengths_k.max,
                   .group = p.heads_k > 0 ? p.group() : 1,
                   .key_heads = capped_product(p.batch, p.heads_k),
                   .is_causal = narrow_mask(p).right != MaskRuleOf<int>::kUnbounded,
                   .has_sink = p.has_sink,
                   .deterministic = p.deterministic};
}

const BackwardRow* select_row(const BackwardProblem& p, Variant variant) {
  return select_backward({.head_dim = p.head_dim,
                          .head_dim_v = p.head_dim_v,
                          .variant = variant,
                          .dropout = p.dropout.on(),
                          .block_mask = p.block_mask.on,
                          .wide = has_wide_keys(p),
                          .dense = dense_call(p, variant)});
}

const BackwardRow* select_wide_row(const BackwardProblem& p) {
  return select_backward({.head_dim = p.head_dim,
                          .head_dim_v = p.head_dim_v,
                          .variant = Variant::kGeneral,
                          .wide = true});
}

// A row that is compiled at run time keeps slopes and walks lists. Rows go through the kernels of a
// softcap's, whose steps are as long.
BackwardKernel listed_slopes_kernel(const BackwardConfig& config) {
  const BackwardRow* const of_rows = select_backward({.head_dim = config.shape.head_dim,
                                                      .head_dim_v = config.shape.head_dim_v,
                                                      .variant = Variant::kCapped});
  BackwardKernel kernel = backward_kernel_at(*of_rows, config.element);
  kernel.config = config;
  kernel.main = kernel.main_deterministic = nullptr;
  kernel.smem_bytes = kMaxSmemBytes;
  return kernel;
}

BackwardKernel kernel_of(const BackwardProblem& p, Variant variant) {
  const BackwardRow& row = *select_row(p, variant);
  const Element element = element_of(p.dtype);
  if (!row.built) return listed_slopes_kernel(kernel_of(row, element));
  BackwardKernel kernel = backward_kernel_at(row, element);
  // Score functions are compiled for CTAs of one key block.
  if (p.score != nullptr) kernel.config.sharing = Sharing::kNone;
  return kernel;
}

// Main and postprocess kernels, of which one may be for float32, have one layout of dQ's sums: that
// of the tiles that there are for float32.
BackwardProblem as_tiled(const BackwardProblem& p) {
  BackwardProblem tiled = p;
  if (!p.has_wide_gradients()) return tiled;
  const BackwardConfig& c = select_wide_row(p)->kernel;
  tiled.head_dim = c.shape.head_dim;
  tiled.head_dim_v = c.shape.head_dim_v;
  return tiled;
}

BackwardKernel kernel_of(const BackwardProblem& p) {
  const Variant variant = main_variant(p);
  BackwardKernel kernel = kernel_of(p, variant);
  // Rows of slopes' kernels are as long as those of capped ones.
  if (variant != Variant::kCapped && !p.block_mask.on) {
    const BackwardKernel of_rows = kernel_of(p, variant_of(p));
    kernel.preprocess = of_rows.preprocess;
    kernel.gated_preprocess = of_rows.gated_preprocess;
  }
  if (has_wide_keys(p) != (p.dq.dtype != p.dtype)) {
    BackwardProblem of_dq = p;
    of_dq.dk.dtype = p.dq.dtype;
    kernel.postprocess = kernel_of(of_dq, main_variant(of_dq)).postprocess;
  }
  return kernel;
}

// Gradients in float32 have kernels of their own: main ones, which write those of keys, and
// postprocess kernels, which write those of queries.
Status check_wide_gradients(const BackwardProblem& p) {
  if (!p.has_wide_gradients()) return {};
  const bool has_rows = select_wide_row(p) != nullptr;
  const bool has_others =
      p.softcap != 0.0f || p.dropout.on() || p.block_mask.on || p.score != nullptr;
  if (p.dk.dtype == p.dv.dtype && has_rows && !has_others) return {};
  return unsupported("gradients of float32 from inputs of ", name_of(p.dtype),
                     " where only one of dk and dv is, with softcap, dropout, block_mask, a score "
                     "function or head dims beyond 128, got head dims ",
                     p.head_dim, " and ", p.head_dim_v);
}

std::string reasons(const BackwardPlan& plan, const char* why_the_row) {
  const BackwardConfig& c = plan.kernel.config;
  std::string why = concat("kernel for head dims up to ", c.shape.head_dim, " and ",
                           c.shape.head_dim_v, ": ", why_the_row);
  if (plan.short_sequences) {
    why += "; a tile holds a whole sequence";
  } else if (plan.call.deterministic) {
    why += "; key blocks add to dQ in one order";
  } else if (plan.step_splits() > 1) {
    why += concat("; the steps of a key block in ", plan.step_splits(),
                  " splits, which add up dK and dV");
  }
  if (plan.call.gate.kind != cuda::Gate::kNone) why += "; preprocess applies the gate to dO";
  if (plan.call.block_lists != nullptr) why += kListsBefore;
  return why;
}

}  // namespace

namespace {

// Under a causal mask both key blocks of a pair would go through the steps of the first, which
// costs more than half of the additions to dQ. No CTA of a pair may be without a key block.
bool suits_pairs(const BackwardConfig& c, const DenseCall& call) {
  return !call.is_causal && ceil_div(call.keys, c.shape.block_n) % c.ctas() == 0;
}

// Key blocks of few steps gain, where an SM has many: a CTA draws one ahead, so at the end some
// CTAs have two left and others none (docs/lab/backward.md). Each has a step at least, since the
// last query sees all keys.
bool suits_persistent(const BackwardConfig& c, const DenseCall& call) {
  constexpr int64_t kMostSteps = 8, kLeastTiles = 2048;
  const int64_t steps = ceil_div(call.queries, c.shape.block_m) * call.group;
  return !call.deterministic && call.queries > 0 &&
         steps <= (call.is_causal ? 2 : 1) * kMostSteps &&
         capped_product(ceil_div(call.keys, c.shape.block_n), call.key_heads) >= kLeastTiles;
}

// Steps are not split, so most SMs must get a key block, or two where their lengths differ: the row
// for all calls has key blocks of half the size. Preprocess of sinks is that of a general kernel,
// whose query blocks have other rows.
bool suits_long_sums(const BackwardConfig& c, const DenseCall& call) {
  constexpr int64_t kLeastTiles = 100, kLeastCausalTiles = 264;
  return !call.has_sink && capped_product(ceil_div(call.keys, c.shape.block_n), call.key_heads) >=
                               (call.is_causal ? kLeastCausalTiles : kLeastTiles);
}

}  // namespace

const BackwardRow* select_backward(const BackwardWants& wants) {
  const auto serves = [&](const BackwardConfig& c) {
    const bool knows = c.capped() == (wants.variant == Variant::kCapped) &&
                       (c.general() || wants.variant != Variant::kGeneral);
    return knows && c.shape.head_dim >= wants.head_dim && c.shape.head_dim_v >= wants.head_dim_v &&
           c.dropout() == wants.dropout && c.block_mask() == wants.block_mask &&
           c.wide() == wants.wide;
  };
  const auto suits = [&](const BackwardConfig& c) {
    if (!is_for_some_dense_calls(c)) return true;
    if (!wants.dense) return false;
    if (c.has_long_sums()) return suits_long_sums(c, *wants.dense);
    return c.persistent() ? suits_persistent(c, *wants.dense) : suits_pairs(c, *wants.dense);
  };
  const auto row = std::ranges::find_if(
      kBackward, [&](const BackwardRow& row) { return serves(row.kernel) && suits(row.kernel); });
  return row == kBackward.end() ? nullptr : &*row;
}

Status plan_backward(const BackwardProblem& problem, Plan* plan) {
  Problem without_function = problem;  // beside which a forward kernel may do less than these do
  without_function.score = nullptr;
  FA3_TRY(check_forward(without_function));
  if (problem.has_float8()) return unsupported("no gradients of ", name_of(problem.kv_dtype));
  if (!has_whole_copies(problem)) {
    return unsupported("gradients where head dims are no multiples of 8, got ", problem.head_dim,
                       " and ", problem.head_dim_v);
  }
  if (problem.o.dtype != problem.dtype) {
    return unsupported("gradients of an output of ", name_of(problem.o.dtype), " from inputs of ",
                       name_of(problem.dtype));
  }
  FA3_TRY(check_wide_gradients(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  const BackwardProblem tiled = as_tiled(problem);
  const Variant variant = main_variant(tiled);
  const BackwardRow* const row = select_row(tiled, variant);
  if (row == nullptr) {
    return unsupported("no backward kernel for head dims ", problem.head_dim, " and ",
                       problem.head_dim_v, "; the largest have 256 and 256");
  }
  const BackwardCall call = call_of(problem);
  FA3_TRY(check_layouts(call));
  FA3_TRY(check_score_gradients(problem));
  int num_sms = 0;
  FA3_TRY(count_free_sms(problem, &num_sms));
  const BackwardPlan decided = plan_launches(kernel_of(tiled), call, num_sms);
  if (decided.num_tiles > kMaxBlocks || decided.num_query_blocks() > kMaxBlocks) {
    return unsupported("more than 2^28 blocks of queries or keys");
  }

  const BackwardConfig& c = decided.kernel.config;
  plan->engine = "hopper";
  plan->decided.store(decided);
  plan->block_q = c.shape.block_m;
  plan->block_k = c.shape.block_n;
  plan->num_tasks = decided.num_tiles;
  plan->workspace_bytes = decided.workspace.bytes;
  if (decided.lists.mask.on && !call.varlen) {
    plan->block_list_bytes = cuda::block_list_bytes(decided.lists, lists_of(call));
  }
  if (plan->wants_words) {
    plan->kernel =
        concat("backward ", name_of(problem.dtype), " d", c.shape.head_dim, "/", c.shape.head_dim_v,
               " ", c.shape.block_m, "x", c.shape.block_n, mask_name(call.mask),
               c.block_mask() ? " block mask" : "", c.dropout() ? " dropout" : "",
               c.wide() ? " float32" : "", c.in_pairs() ? " in pairs" : "",
               c.persistent() ? " persistent" : "", call.deterministic ? " deterministic" : "",
               problem.score ? " with a score function" : "");
    plan->why = reasons(decided, row->why);
  }
  return {};
}

}  // namespace fa3::hopper
