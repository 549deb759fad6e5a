// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/plan_backward.h"

#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "engine/cuda/device.h"
#include "engine/hopper/host/capability.h"
#include "engine/hopper/plan/describe_launch.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 28;  // numbers of CTAs are 31-bit

Status check_layouts(const BackwardArguments& a) {
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

// Without rows there may still be sinks, whose gradient is zero.
bool nothing_to_do(const BackwardArguments& a) {
  const bool no_rows = a.q.rows * a.q.batches == 0 && a.k.rows * a.k.batches == 0;
  return a.q.heads == 0 || (no_rows && a.d_sink == nullptr);
}

// A sink joins the rows' sums alone: the main kernel needs no word of it.
Variant main_variant(const BackwardProblem& p) {
  Problem without_sink = p;
  without_sink.has_sink = false;
  return variant_of(without_sink);
}

BackwardKernel kernel_of(const BackwardProblem& p, int row) {
  const Element element = element_of(p.dtype);
  BackwardKernel kernel = backward_kernel_at(row, element, main_variant(p));
  kernel.preprocess = backward_kernel_at(row, element, variant_of(p)).preprocess;
  return kernel;
}

}  // namespace

int select_backward_kernel(int64_t head_dim, int64_t head_dim_v) {
  for (int row = 0; row < int(kBackwardTable.size()); ++row) {
    const BackwardConfig& c = kBackwardTable[row].config;
    if (c.head_dim >= head_dim && c.head_dim_v >= head_dim_v) return row;
  }
  return kNoBackwardKernel;
}

BackwardArguments arguments_of(const BackwardProblem& p, void* workspace) {
  const auto span = [&](const Operand& t, const Lengths& lengths, int64_t heads, int64_t columns) {
    return lengths.in_one_tensor ? span_of(t, 1, lengths.total, heads, columns)
                                 : span_of(t, p.batch, lengths.max, heads, columns);
  };
  const auto queries = [&](const Operand& t, int64_t columns) {
    return span(t, p.lengths_q, p.heads_q, columns);
  };
  const auto keys = [&](const Operand& t, int64_t columns) {
    return span(t, p.lengths_k, p.heads_k, columns);
  };
  const ForwardLaunch forward = launch_of(p);
  const auto numbers = [](const RowScalars& r) {
    return RowFloats{r.data, {r.batch_stride, r.head_stride, r.row_stride}};
  };
  BackwardArguments a;
  a.q = queries(p.q, p.head_dim);
  a.k = keys(p.k, p.head_dim);
  a.v = keys(p.v, p.head_dim_v);
  a.o = queries(p.o, p.head_dim_v);
  a.d_o = queries(p.d_o, p.head_dim_v);
  a.dq = queries(p.dq, p.head_dim);
  a.dk = keys(p.dk, p.head_dim);
  a.dv = keys(p.dv, p.head_dim_v);
  a.lse = numbers(p.lse);
  if (p.has_d_lse) a.d_lse = numbers(p.d_lse);
  a.scale = p.scale;
  a.gradient_scale = p.gradient_scale(p.lengths_k.max);
  a.gradient_scale_of_one_key = p.gradient_scale(1);
  a.softcap = p.softcap;
  a.mask = forward.mask;
  a.deterministic = p.deterministic;
  a.batch_invariant = p.batch_invariant;
  a.has_sink = p.has_sink;
  a.sink = p.sink;
  a.d_sink = p.dsink;
  a.seqlen_q = forward.seqlen_q;
  a.seqlen_k = forward.seqlen_k;
  a.varlen = forward.varlen;
  a.sequences = p.batch;
  a.lengths_q = p.lengths_q;
  a.lengths_k = p.lengths_k;
  a.workspace = workspace;
  return a;
}

Status plan_backward(const BackwardProblem& problem, Plan* plan) {
  FA3_TRY(check_forward(problem));
  if (problem.has_e4m3()) return unsupported("no gradients of float8_e4m3");
  if (!has_whole_copies(problem)) {
    return unsupported("gradients where head dims are no multiples of 8, got ", problem.head_dim,
                       " and ", problem.head_dim_v);
  }
  if (problem.o.dtype != problem.dtype) {
    return unsupported("gradients of an output of ", name_of(problem.o.dtype), " from inputs of ",
                       name_of(problem.dtype));
  }
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  const int row = select_backward_kernel(problem.head_dim, problem.head_dim_v);
  if (row == kNoBackwardKernel) {
    return unsupported("no backward kernel for head dims ", problem.head_dim, " and ",
                       problem.head_dim_v, "; the largest have 256 and 256");
  }
  const BackwardArguments a = arguments_of(problem, nullptr);
  const BackwardConfig c = kernel_of(problem, row).config;
  FA3_TRY(check_layouts(a));
  const int64_t num_tiles = backward_num_tiles(c, a);
  if (num_tiles > kMaxBlocks || backward_num_query_blocks(c, a) > kMaxBlocks) {
    return unsupported("more than 2^28 blocks of queries or keys");
  }

  plan->engine = "hopper";
  plan->variant = row;
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->num_tasks = num_tiles;
  plan->workspace_bytes = nothing_to_do(a) ? 0 : backward_workspace_bytes(c, a);
  if (!plan->wants_words) return {};
  plan->kernel =
      concat("backward ", name_of(problem.dtype), " d", c.head_dim, "/", c.head_dim_v, " ",
             c.block_m, "x", c.block_n, mask_name(a.mask), a.deterministic ? " deterministic" : "");
  plan->why = concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ",
                     kBackwardTable[row].why);
  if (has_short_sequences(c, a)) {
    plan->why += "; a tile holds a whole sequence";
  } else if (a.deterministic) {
    plan->why += "; key blocks add to dQ by turns";
  } else if (const int64_t shares = backward_shares(c, a); shares > 1) {
    plan->why +=
        concat("; the heads of a key block in ", shares, " shares, which add up dK and dV");
  }
  return {};
}

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream) {
  const BackwardArguments a = arguments_of(problem, workspace);
  if (nothing_to_do(a)) return {};
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = launch_backward(kernel_of(problem, plan.variant), a, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("hopper backward: ", cudaGetErrorString(error))};
}

}  // namespace fa3::hopper
