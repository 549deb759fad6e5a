// SPDX-License-Identifier: Apache-2.0
#include "support/runs/run.h"

#include <fa3/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "support/cases/fp8.h"
#include "support/failure.h"

namespace fa3::test {
namespace {

fa3_tensor lengths_view(const std::vector<int32_t>& lengths) {
  if (lengths.empty()) return {};
  return contiguous(lengths.data(), FA3_INT32, {static_cast<int64_t>(lengths.size())});
}

fa3_tensor map_view(const MaskData& mask) {
  if (mask.blocks.empty()) return {};
  return contiguous(mask.blocks.data(), FA3_INT32,
                    {mask.sequences, mask.heads, mask.query_blocks, mask.key_blocks});
}

fa3_tensor bits_view(const MaskData& mask) {
  constexpr int64_t kBlock = FA3_MASK_BLOCK, kWords = kBlock / 32;
  if (mask.bits.empty()) return {};
  return contiguous(mask.bits.data(), FA3_INT32,
                    {int64_t(mask.bits.size()) / (kBlock * kWords), kBlock, kWords});
}

fa3_tensor page_table_view(const Inputs& inputs) {
  const auto size = static_cast<int64_t>(inputs.page_table.size());
  if (size == 0) return {};
  return contiguous(inputs.page_table.data(), FA3_INT32,
                    {size / inputs.max_pages, inputs.max_pages});
}

// What is wrong with an output after a successful call.
std::string output_problem(const char* name, const Tensor& output) {
  for (const std::string& found : {output.find_unwritten(), output.find_damaged_guard()}) {
    if (!found.empty()) return std::string(name) + ": " + found;
  }
  return "";
}

// Functions of a pass, in the C ABI.
template <class Params>
struct Functions {
  fa3_status (*lists_size)(const Params*, size_t*);
  fa3_status (*make_lists)(const Params*, void*, size_t, void*, fa3_block_lists*);
  fa3_status (*size)(const Params*, size_t*);
  fa3_status (*run)(const Params*, void*, size_t, void*);
};
constexpr Functions<fa3_forward_params> kForward{fa3_forward_block_lists_size,
                                                 fa3_forward_make_block_lists,
                                                 fa3_forward_workspace_size, fa3_forward};
constexpr Functions<fa3_backward_params> kBackward{fa3_backward_block_lists_size,
                                                   fa3_backward_make_block_lists,
                                                   fa3_backward_workspace_size, fa3_backward};

// Makes lists if they are to be there before, asks for the workspace's size, then runs the call and
// brings its results back.
template <class Params>
std::string call(Params params, const Functions<Params>& pass, Lists wanted, Placement* placement) {
  const auto& [lists_size, make_lists, size, run] = pass;
  size_t bytes = 0;
  fa3_block_lists lists{};
  if (wanted == Lists::made_before) {
    if (fa3_status status = lists_size(&params, &bytes); status != FA3_OK) {
      return failure("block_lists_size", status);
    }
    void* memory = placement->workspace(bytes);
    if (fa3_status status = make_lists(&params, memory, bytes, nullptr, &lists); status != FA3_OK) {
      return failure("make_block_lists", status);
    }
    params.options.block_lists = &lists;
  }
  if (fa3_status status = size(&params, &bytes); status != FA3_OK) {
    return failure("workspace_size", status);
  }
  void* workspace = placement->workspace(bytes);
  if (fa3_status status = run(&params, workspace, bytes, nullptr); status != FA3_OK) {
    return failure("run", status);
  }
  return placement->fetch();
}

int64_t longest(const std::vector<int32_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Arrays of lengths, which the call must bound where they are in a device's memory; block masks.
void place_lengths(const Case& c, const Inputs& inputs, Placement* placement,
                   fa3_options* options) {
  placement->input(inputs.cu_q, &options->cu_seqlens_q);
  placement->input(inputs.cu_k, &options->cu_seqlens_k);
  placement->input(inputs.mask.blocks, &options->block_mask);
  placement->input(inputs.mask.bits, &options->block_mask_bits);
  placement->input(c.q.used, &options->seqused_q);
  placement->input(c.k.used, &options->seqused_k);
  if (options->cu_seqlens_q.device_type == FA3_CUDA) options->max_seqlen_q = longest(c.q.owned);
  if (options->cu_seqlens_k.device_type == FA3_CUDA) options->max_seqlen_k = longest(c.k.owned);
}

Tensor make_max_logit(const Case& c) {
  return c.max_logit ? Tensor(c.max_logit_shape(), FA3_FLOAT32, c.out) : Tensor();
}

// (batch, heads)
fa3_tensor max_logit_view(const Tensor& max_logit) {
  fa3_tensor view = max_logit.dense();
  view.rank = 2;
  view.shape[1] = view.shape[2];
  view.stride[1] = view.stride[2];
  return view;
}

struct Outputs {
  Tensor o, lse, max_logit;
  explicit Outputs(const Case& c)
      : o(c.o_shape(), c.o_dtype(), c.out),
        lse(c.lse_shape(), FA3_FLOAT32, c.out),
        max_logit(make_max_logit(c)) {}
};

struct Gradients {
  Tensor dq, dk, dv, dsink, d_gate;
  explicit Gradients(const Case& c)
      : dq(c.q_shape(), c.dtype, c.out),
        dk(c.k_shape(), c.dtype, c.out),
        dv(c.v_shape(), c.dtype, c.out),
        dsink({1, 1, c.sink ? c.heads_q : 0, 1}, FA3_FLOAT32),
        d_gate(c.gate != Gate::none ? Tensor(c.gate_shape(), c.gate_dtype, c.out) : Tensor()) {}
};

// What both passes take.
template <class Params>
void set_forward_operands(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                          const Tensor& o, const Tensor& lse, Params* params) {
  params->options = make_options(engine, c, inputs);
  params->q = view_of(c.q, inputs.q);
  params->k = view_of(c.k, inputs.k);
  params->v = view_of(c.k, inputs.v);
  params->o = view_of(c.q, o);
  params->lse = lse_view(c.q, lse);
  if (c.sink) params->sink = inputs.sink.head_vector();
  if (c.gate != Gate::none) params->gate = view_of(c.q, inputs.gate);
}

fa3_backward_params backward_params(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                                    const Tensor& o, const Tensor& lse, const Gradients& out) {
  fa3_backward_params params;
  fa3_backward_params_init(&params);
  set_forward_operands(engine, c, inputs, o, lse, &params);
  params.d_o = view_of(c.q, inputs.d_o);
  if (c.d_lse) params.d_lse = lse_view(c.q, inputs.d_lse);
  params.dq = view_of(c.q, out.dq);
  params.dk = view_of(c.k, out.dk);
  params.dv = view_of(c.k, out.dv);
  if (c.sink) params.dsink = out.dsink.head_vector();
  if (c.gate != Gate::none) params.d_gate = view_of(c.q, out.d_gate);
  return params;
}

// Views that a question may bring without their memory.
template <class Params>
void claim_all(fa3_device_type memory, Params* params, std::initializer_list<fa3_tensor*> more) {
  fa3_options& options = params->options;
  for (fa3_tensor* view :
       {&params->q, &params->k, &params->v, &params->o, &params->lse, &params->sink, &params->gate,
        &options.cu_seqlens_q, &options.cu_seqlens_k, &options.seqused_q, &options.seqused_k,
        &options.block_mask, &options.block_mask_bits}) {
    claim(memory, view);
  }
  for (fa3_tensor* view : more) claim(memory, view);
}

}  // namespace

fa3_tensor view_of(const Side& side, const Tensor& tensor) {
  return side.packed() ? tensor.packed() : tensor.dense();
}

fa3_tensor lse_view(const Side& side, const Tensor& lse) {
  return side.packed() ? lse.packed_lse() : lse.dense_lse();
}

fa3_options make_options(fa3_engine_id engine, const Case& c, const Inputs& inputs) {
  fa3_forward_params defaults;
  fa3_forward_params_init(&defaults);
  fa3_options options = defaults.options;
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.window_left = c.left;
  options.window_right = c.right;
  options.window_shift = c.shift;
  options.dropout_p = c.dropout_p;
  options.dropout_seed = c.dropout_seed;
  options.dropout_offset = c.dropout_offset;
  options.dropout_sequence = c.dropout_origin.sequence;
  options.dropout_head = c.dropout_origin.head;
  options.dropout_query = c.dropout_origin.query;
  options.dropout_key = c.dropout_origin.key;
  options.attention_chunk = c.chunk;
  options.causal = c.causal ? 1 : 0;
  options.num_threads = c.num_threads;
  options.batch_invariant = c.batch_invariant ? 1 : 0;
  options.engine = engine;
  options.cu_seqlens_q = lengths_view(inputs.cu_q);
  options.cu_seqlens_k = lengths_view(inputs.cu_k);
  options.block_mask = map_view(inputs.mask);
  options.block_mask_bits = bits_view(inputs.mask);
  options.seqused_q = lengths_view(c.q.used);
  options.seqused_k = lengths_view(c.k.used);
  return options;
}

fa3_forward_params forward_params(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                                  const Tensor& o, const Tensor& lse) {
  fa3_forward_params params;
  fa3_forward_params_init(&params);
  set_forward_operands(engine, c, inputs, o, lse, &params);
  params.page_table = page_table_view(inputs);
  params.batch_index = lengths_view(inputs.batch_index);
  params.left_padding = lengths_view(inputs.left_padding);
  params.num_splits = c.num_splits;
  params.q_descale = descale_view(c.fp8.q, inputs.q_descale);
  params.k_descale = descale_view(c.fp8.k, inputs.k_descale);
  params.v_descale = descale_view(c.fp8.v, inputs.v_descale);
  if (c.fp8.k_mean) params.k_mean = mean_view(inputs.k_mean);
  if (c.fp8.v_mean) params.v_mean = mean_view(inputs.v_mean);
  return params;
}

void place(const Case& c, const Inputs& inputs, Tensor* o, Tensor* lse, Placement* placement,
           fa3_forward_params* params) {
  place_lengths(c, inputs, placement, &params->options);
  placement->input(inputs.q, &params->q);
  placement->input(inputs.k, &params->k);
  placement->input(inputs.v, &params->v);
  placement->input(inputs.sink, &params->sink);
  if (c.gate != Gate::none) placement->input(inputs.gate, &params->gate);
  placement->input(inputs.page_table, &params->page_table);
  placement->input(inputs.batch_index, &params->batch_index);
  placement->input(inputs.left_padding, &params->left_padding);
  placement->input(inputs.q_descale, &params->q_descale);
  placement->input(inputs.k_descale, &params->k_descale);
  placement->input(inputs.v_descale, &params->v_descale);
  placement->input(inputs.k_mean, &params->k_mean);
  placement->input(inputs.v_mean, &params->v_mean);
  placement->output(o, &params->o);
  placement->output(lse, &params->lse);
}

fa3_status ask_forward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs) {
  const Outputs out(c);
  fa3_forward_params params = forward_params(engine.id, c, inputs, out.o, out.lse);
  if (c.max_logit) params.max_logit = max_logit_view(out.max_logit);
  claim_all(
      engine.memory, &params,
      {&params.page_table, &params.batch_index, &params.left_padding, &params.q_descale,
       &params.k_descale, &params.v_descale, &params.k_mean, &params.v_mean, &params.max_logit});
  return fa3_forward_supported(&params);
}

fa3_status ask_forward(const EngineUnderTest& engine, const Case& c) {
  return ask_forward(engine, c, make_shapes(c));
}

fa3_status ask_backward(const EngineUnderTest& engine, const Case& c) {
  const Inputs inputs = make_shapes(c);
  const Outputs at(c);
  const Gradients out(c);
  fa3_backward_params params = backward_params(engine.id, c, inputs, at.o, at.lse, out);
  params.options.deterministic = 1;
  claim_all(engine.memory, &params,
            {&params.d_o, &params.d_lse, &params.dq, &params.dk, &params.dv, &params.dsink,
             &params.d_gate});
  return fa3_backward_supported(&params);
}

ForwardRun run_forward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                       Lists lists) {
  Outputs out(c);
  fa3_forward_params params = forward_params(engine.id, c, inputs, out.o, out.lse);
  Placement placement(engine.memory);
  place(c, inputs, &out.o, &out.lse, &placement, &params);
  if (c.max_logit) {
    params.max_logit = max_logit_view(out.max_logit);
    placement.output(&out.max_logit, &params.max_logit);
  }
  std::string problem = call(params, kForward, lists, &placement);
  if (problem.empty()) problem = output_problem("o", out.o);
  if (problem.empty()) problem = output_problem("lse", out.lse);
  if (problem.empty() && c.max_logit) problem = output_problem("max_logit", out.max_logit);
  return {std::move(out.o), std::move(out.lse), std::move(out.max_logit), std::move(problem)};
}

BackwardRun run_backward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                         const ForwardRun& forward, bool deterministic, Lists lists) {
  Gradients out(c);
  Tensor o = forward.o;
  Tensor lse = forward.lse;
  fill_unused_rows(c, c.q, std::numeric_limits<float>::quiet_NaN(), &o);
  fill_unused_rows(c, c.q, std::numeric_limits<float>::quiet_NaN(), &lse);
  fa3_backward_params params = backward_params(engine.id, c, inputs, o, lse, out);
  params.options.deterministic = deterministic ? 1 : 0;
  Placement placement(engine.memory);
  place_lengths(c, inputs, &placement, &params.options);
  placement.input(inputs.q, &params.q);
  placement.input(inputs.k, &params.k);
  placement.input(inputs.v, &params.v);
  placement.input(inputs.sink, &params.sink);
  if (c.gate != Gate::none) placement.input(inputs.gate, &params.gate);
  placement.input(o, &params.o);
  placement.input(lse, &params.lse);
  placement.input(inputs.d_o, &params.d_o);
  if (c.d_lse) placement.input(inputs.d_lse, &params.d_lse);
  placement.output(&out.dq, &params.dq);
  placement.output(&out.dk, &params.dk);
  placement.output(&out.dv, &params.dv);
  placement.output(&out.dsink, &params.dsink);
  if (c.gate != Gate::none) placement.output(&out.d_gate, &params.d_gate);
  std::string problem = call(params, kBackward, lists, &placement);
  if (problem.empty()) problem = output_problem("dq", out.dq);
  if (problem.empty()) problem = output_problem("dk", out.dk);
  if (problem.empty()) problem = output_problem("dv", out.dv);
  if (problem.empty()) problem = output_problem("dsink", out.dsink);
  if (problem.empty() && c.gate != Gate::none) problem = output_problem("d_gate", out.d_gate);
  return {std::move(out.dq),    std::move(out.dk),     std::move(out.dv),
          std::move(out.dsink), std::move(out.d_gate), std::move(problem)};
}

}  // namespace fa3::test
