// SPDX-License-Identifier: Apache-2.0
#include "cli/call/operands.h"

#include <array>

#include "cli/call/random.h"

namespace fa3::cli {
namespace {

HostTensor make(fa3_dtype dtype, std::vector<int64_t> shape, Memory memory) {
  return memory == Memory::allocate ? HostTensor(dtype, std::move(shape))
                                    : HostTensor::shape_only(dtype, std::move(shape));
}

// (batch, seq, heads, dim) in the axis order of `layout`.
std::vector<int64_t> ordered(Layout layout, int64_t batch, int64_t seq, int64_t heads,
                             int64_t dim) {
  if (layout == Layout::bshd) return {batch, seq, heads, dim};
  return {batch, heads, seq, dim};
}

}  // namespace

Operands make_operands(const Shape& shape, fa3_dtype dtype, Layout layout, const Wanted& wanted) {
  Operands operands;
  operands.layout = layout;
  const auto input = [&](int64_t seq, int64_t heads, int64_t dim) {
    return make(dtype, ordered(layout, shape.batch, seq, heads, dim), wanted.memory);
  };
  operands.q = input(shape.seqlen_q, shape.heads, shape.head_dim);
  operands.k = input(shape.seqlen_k, shape.kv_heads, shape.head_dim);
  operands.v = input(shape.seqlen_k, shape.kv_heads, shape.head_dim_v);
  if (wanted.sink) operands.sink = make(FA3_FLOAT32, {shape.heads}, wanted.memory);
  add_outputs(&operands, wanted);
  return operands;
}

Operands with_inputs_of(const Operands& from, fa3_dtype dtype, const Wanted& wanted) {
  Operands operands;
  operands.layout = from.layout;
  operands.q = from.q.converted(dtype);
  operands.k = from.k.converted(dtype);
  operands.v = from.v.converted(dtype);
  if (wanted.sink) operands.sink = from.sink.converted(FA3_FLOAT32);
  if (wanted.backward) operands.d_o = from.d_o.converted(dtype);
  add_outputs(&operands, wanted);
  return operands;
}

void add_outputs(Operands* operands, const Wanted& wanted) {
  const fa3_tensor q = operands->q.attention_view(operands->layout);
  const fa3_dtype dtype = operands->q.dtype();
  const std::vector<int64_t> o_shape =
      ordered(operands->layout, q.shape[0], q.shape[1], q.shape[2], operands->v.shape()[3]);
  const fa3_dtype o_dtype = dtype == FA3_FLOAT8_E4M3 ? FA3_BFLOAT16 : dtype;
  operands->o = make(o_dtype, o_shape, wanted.memory);
  operands->lse = make(FA3_FLOAT32, {q.shape[0], q.shape[2], q.shape[1]}, wanted.memory);
  if (wanted.backward) {
    if (!operands->d_o.present()) operands->d_o = make(dtype, o_shape, wanted.memory);
    operands->dq = make(dtype, operands->q.shape(), wanted.memory);
    operands->dk = make(dtype, operands->k.shape(), wanted.memory);
    operands->dv = make(dtype, operands->v.shape(), wanted.memory);
    if (wanted.sink) operands->dsink = make(FA3_FLOAT32, operands->sink.shape(), wanted.memory);
  }
  for (HostTensor* output : {&operands->o, &operands->lse, &operands->dq, &operands->dk,
                             &operands->dv, &operands->dsink}) {
    output->poison();
  }
}

void fill_inputs(Operands* operands, uint64_t seed) {
  for (HostTensor* input :
       {&operands->q, &operands->k, &operands->v, &operands->sink, &operands->d_o}) {
    fill_normal(input, seed++);
  }
}

ForwardArgs forward_args(const Operands& operands, const fa3_options& options) {
  ForwardArgs args;
  args.options = options;
  args.q = operands.q.attention_view(operands.layout);
  args.k = operands.k.attention_view(operands.layout);
  args.v = operands.v.attention_view(operands.layout);
  args.o = operands.o.attention_view(operands.layout);
  args.lse = operands.lse.view();
  args.sink = operands.sink.view();
  return args;
}

BackwardArgs backward_args(const Operands& operands, const fa3_options& options) {
  const ForwardArgs forward = forward_args(operands, options);
  BackwardArgs args;
  args.options = options;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.o = forward.o;
  args.lse = forward.lse;
  args.sink = forward.sink;
  args.d_o = operands.d_o.attention_view(operands.layout);
  args.dq = operands.dq.attention_view(operands.layout);
  args.dk = operands.dk.attention_view(operands.layout);
  args.dv = operands.dv.attention_view(operands.layout);
  args.dsink = operands.dsink.view();
  return args;
}

fa3_options default_options() {
  return ForwardArgs().options;
}

int64_t input_bytes(const Operands& operands) {
  const auto& [layout, q, k, v, sink, d_o, o, lse, dq, dk, dv, dsink] = operands;
  return sum_of_bytes(std::array{q.bytes(), k.bytes(), v.bytes(), sink.bytes(), d_o.bytes()});
}

int64_t output_bytes(const Operands& operands) {
  const auto& [layout, q, k, v, sink, d_o, o, lse, dq, dk, dv, dsink] = operands;
  return sum_of_bytes(
      std::array{o.bytes(), lse.bytes(), dq.bytes(), dk.bytes(), dv.bytes(), dsink.bytes()});
}

}  // namespace fa3::cli
