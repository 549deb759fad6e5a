// SPDX-License-Identifier: Apache-2.0
#include "support/run.h"

#include <fa3/tensor.h>

#include <algorithm>
#include <limits>

namespace fa3::test {
namespace {

constexpr size_t kAlignment = 256;
constexpr std::byte kFill{0xff};  // four of them are a NaN, in every float type

fa3_tensor view_of(const Side& side, const Tensor& tensor) {
  return side.packed() ? tensor.packed() : tensor.dense();
}

fa3_tensor lse_view(const Side& side, const Tensor& lse) {
  return side.packed() ? lse.packed_lse() : lse.dense_lse();
}

fa3_tensor lengths_view(const std::vector<int32_t>& lengths) {
  if (lengths.empty()) return {};
  return contiguous(lengths.data(), FA3_INT32, {static_cast<int64_t>(lengths.size())});
}

std::string failure(const char* call, fa3_status status) {
  return std::string(call) + ": " + fa3_status_name(status) + ": " + fa3_last_error();
}

// What is wrong with an output after a successful call.
std::string output_problem(const char* name, const Tensor& output) {
  for (const std::string& found : {output.find_unwritten(), output.find_damaged_guard()}) {
    if (!found.empty()) return std::string(name) + ": " + found;
  }
  return "";
}

// Asks for the workspace's size with `size`, then calls `run`.
template <class Params, class Size, class Run>
std::string call_with_workspace(const Params& params, Size&& size, Run&& run) {
  size_t bytes = 0;
  if (fa3_status status = size(&params, &bytes); status != FA3_OK) {
    return failure("workspace_size", status);
  }
  GuardedWorkspace workspace(bytes);
  if (fa3_status status = run(&params, workspace.data(), bytes, nullptr); status != FA3_OK) {
    return failure("run", status);
  }
  return workspace.guards_intact() ? "" : "memory outside the workspace was written";
}

}  // namespace

GuardedWorkspace::GuardedWorkspace(size_t bytes)
    : bytes_(bytes), memory_(bytes + 3 * kAlignment, kFill) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  first_ = kAlignment + (kAlignment - address % kAlignment) % kAlignment;
}

void* GuardedWorkspace::data() {
  return memory_.data() + first_;
}

bool GuardedWorkspace::guards_intact() const {
  const auto is_fill = [](std::byte b) { return b == kFill; };
  const auto begin = memory_.begin();
  const auto first = static_cast<std::ptrdiff_t>(first_);
  return std::all_of(begin, begin + first, is_fill) &&
         std::all_of(begin + first + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_fill);
}

fa3_options make_options(fa3_engine_id engine, const Case& c, const Inputs& inputs) {
  fa3_forward_params defaults;
  fa3_forward_params_init(&defaults);
  fa3_options options = defaults.options;
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.window_left = c.left;
  options.window_right = c.right;
  options.causal = c.causal ? 1 : 0;
  options.num_threads = c.num_threads;
  options.engine = engine;
  options.cu_seqlens_q = lengths_view(inputs.cu_q);
  options.cu_seqlens_k = lengths_view(inputs.cu_k);
  options.seqused_q = lengths_view(c.q.used);
  options.seqused_k = lengths_view(c.k.used);
  return options;
}

fa3_forward_params forward_params(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                                  const Tensor& o, const Tensor& lse) {
  fa3_forward_params params;
  fa3_forward_params_init(&params);
  params.options = make_options(engine, c, inputs);
  params.q = view_of(c.q, inputs.q);
  params.k = view_of(c.k, inputs.k);
  params.v = view_of(c.k, inputs.v);
  params.o = view_of(c.q, o);
  params.lse = lse_view(c.q, lse);
  if (c.sink) params.sink = inputs.sink.head_vector();
  return params;
}

ForwardRun run_forward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs) {
  ForwardRun run{.o = Tensor(c.o_shape(), c.o_dtype(), c.out),
                 .lse = Tensor(c.lse_shape(), FA3_FLOAT32, c.out),
                 .problem = ""};
  const fa3_forward_params params = forward_params(engine.id, c, inputs, run.o, run.lse);
  run.problem = call_with_workspace(params, fa3_forward_workspace_size, fa3_forward);
  if (run.problem.empty()) run.problem = output_problem("o", run.o);
  if (run.problem.empty()) run.problem = output_problem("lse", run.lse);
  return run;
}

BackwardRun run_backward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                         const ForwardRun& forward, bool deterministic) {
  const Layout out = c.out;
  BackwardRun run{.dq = Tensor(c.q_shape(), c.dtype, out),
                  .dk = Tensor(c.k_shape(), c.dtype, out),
                  .dv = Tensor(c.v_shape(), c.dtype, out),
                  .dsink = Tensor({1, 1, c.sink ? c.heads_q : 0, 1}, FA3_FLOAT32),
                  .problem = ""};
  Tensor o = forward.o;
  Tensor lse = forward.lse;
  fill_unused_rows(c, c.q, std::numeric_limits<float>::quiet_NaN(), &o);
  fill_unused_rows(c, c.q, std::numeric_limits<float>::quiet_NaN(), &lse);
  fa3_backward_params params;
  fa3_backward_params_init(&params);
  params.options = make_options(engine.id, c, inputs);
  params.options.deterministic = deterministic ? 1 : 0;
  params.q = view_of(c.q, inputs.q);
  params.k = view_of(c.k, inputs.k);
  params.v = view_of(c.k, inputs.v);
  params.o = view_of(c.q, o);
  params.lse = lse_view(c.q, lse);
  params.d_o = view_of(c.q, inputs.d_o);
  if (c.d_lse) params.d_lse = lse_view(c.q, inputs.d_lse);
  params.dq = view_of(c.q, run.dq);
  params.dk = view_of(c.k, run.dk);
  params.dv = view_of(c.k, run.dv);
  if (c.sink) {
    params.sink = inputs.sink.head_vector();
    params.dsink = run.dsink.head_vector();
  }
  run.problem = call_with_workspace(params, fa3_backward_workspace_size, fa3_backward);
  if (run.problem.empty()) run.problem = output_problem("dq", run.dq);
  if (run.problem.empty()) run.problem = output_problem("dk", run.dk);
  if (run.problem.empty()) run.problem = output_problem("dv", run.dv);
  if (run.problem.empty()) run.problem = output_problem("dsink", run.dsink);
  return run;
}

}  // namespace fa3::test
