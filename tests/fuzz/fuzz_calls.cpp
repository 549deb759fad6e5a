// SPDX-License-Identifier: Apache-2.0
//
// Calls of the C ABI that are right but for a few fields, which hold anything. A call is refused
// with a sentence, or done inside its memory; questions answer without any.
#include <cstring>

#include "calls.h"

namespace fa3::fuzz {
namespace {

constexpr int32_t kTypes[] = {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16};

// Spoils one field of one of these tensors.
void spoil(FuzzedDataProvider& bytes, const std::vector<fa3_tensor*>& tensors) {
  fa3_tensor& t = *tensors[bytes.ConsumeIntegralInRange<size_t>(0, tensors.size() - 1)];
  const int dim = bytes.ConsumeIntegralInRange(0, FA3_MAX_RANK - 1);
  switch (bytes.ConsumeIntegralInRange(0, 6)) {
    case 0:
      t.dtype = bytes.ConsumeIntegralInRange<int32_t>(-1, 6);
      break;
    case 1:
      t.rank = bytes.ConsumeIntegralInRange<int32_t>(-1, FA3_MAX_RANK + 2);
      break;
    case 2:
      t.device_type = bytes.ConsumeIntegralInRange<int32_t>(-1, 4);
      break;
    case 3:
      t.device_index = bytes.ConsumeIntegral<int32_t>();
      break;
    case 4:
      t.shape[dim] = extent(bytes);
      break;
    default:
      t.stride[dim] = extent(bytes);
  }
}

void spoil(FuzzedDataProvider& bytes, fa3_options* options) {
  switch (bytes.ConsumeIntegralInRange(0, 7)) {
    case 0:
      options->scale = real(bytes);
      break;
    case 1:
      options->softcap = real(bytes);
      break;
    case 2:
      options->window_left = extent(bytes);
      break;
    case 3:
      options->window_right = extent(bytes);
      break;
    case 4:
      options->causal = bytes.ConsumeIntegralInRange<int32_t>(-1, 2);
      break;
    case 5:
      options->engine = bytes.ConsumeIntegralInRange<int32_t>(-1, 5);
      break;
    case 6:
      options->num_threads = bytes.ConsumeIntegralInRange<int32_t>(-1, 3);
      break;
    default:
      options->max_seqlen_q = extent(bytes);
  }
}

struct Shape {
  int64_t batch, rows_q, rows_k, heads_q, heads_k, dim, dim_v;
  int32_t dtype;

  explicit Shape(FuzzedDataProvider& bytes) {
    batch = bytes.ConsumeIntegralInRange(0, 3);
    rows_q = bytes.ConsumeIntegralInRange(0, 40);
    rows_k = bytes.ConsumeIntegralInRange(0, 70);
    heads_k = bytes.ConsumeIntegralInRange(1, 3);
    heads_q = heads_k * bytes.ConsumeIntegralInRange(1, 4);
    dim = bytes.ConsumeIntegralInRange(1, 40);
    dim_v = bytes.ConsumeIntegralInRange(1, 40);
    dtype = bytes.PickValueInArray(kTypes);
  }
};

template <class Params>
void set_forward_fields(FuzzedDataProvider& bytes, const Shape& s, Params* p) {
  p->q = dense(s.dtype, {s.batch, s.rows_q, s.heads_q, s.dim});
  p->k = dense(s.dtype, {s.batch, s.rows_k, s.heads_k, s.dim});
  p->v = dense(s.dtype, {s.batch, s.rows_k, s.heads_k, s.dim_v});
  p->o = dense(s.dtype, {s.batch, s.rows_q, s.heads_q, s.dim_v});
  p->lse = dense(FA3_FLOAT32, {s.batch, s.heads_q, s.rows_q});
  if (bytes.ConsumeBool()) p->sink = dense(FA3_FLOAT32, {s.heads_q});
  if (bytes.ConsumeBool()) p->options.causal = 1;
  if (bytes.ConsumeBool()) p->options.softcap = 5.0f;
  p->options.num_threads = 1;
}

// Questions first, without memory; then the call, if every tensor can have some.
template <class Params, class Ask, class Size, class Text, class Run>
void ask_and_run(Params& p, const std::vector<fa3_tensor*>& tensors, Ask ask, Size size, Text text,
                 Run run) {
  size_t bytes = 0, needed = 0, at_call = 0;
  char words[40];
  const fa3_status asked = ask(&p);
  check((asked == FA3_OK) == (*fa3_last_error() == '\0'), "status and sentence disagree");
  check(size(&p, &bytes) == asked, "the size's status differs");
  check(text(&p, words, sizeof(words), &needed) == asked, "the plan's status differs");
  Memory memory;
  bool backed = true;
  for (fa3_tensor* tensor : tensors) backed = memory.back(tensor) && backed;
  if (!backed || bytes > size_t{64} << 20) return;
  if (asked == FA3_OK) check(size(&p, &at_call) == FA3_OK, "a call with data needs another answer");
  const fa3_status ran = run(&p, memory.workspace(bytes), bytes, nullptr);
  check((ran == FA3_OK) == (*fa3_last_error() == '\0'), "status and sentence disagree");
  check(ran != FA3_INTERNAL_ERROR, "a defect was reported");
  check(ran != FA3_OK || asked == FA3_OK, "a call ran that was called impossible");
}

template <class Params>
void spoil_some(FuzzedDataProvider& bytes, Params* p, const std::vector<fa3_tensor*>& tensors) {
  for (int count = bytes.ConsumeIntegralInRange(0, 3); count > 0; --count) {
    if (bytes.ConsumeBool()) {
      spoil(bytes, tensors);
    } else {
      spoil(bytes, &p->options);
    }
  }
  if (bytes.ConsumeIntegralInRange(0, 30) == 30) p->struct_size = bytes.ConsumeIntegral<uint16_t>();
}

void forward(FuzzedDataProvider& bytes) {
  fa3_forward_params p;
  fa3_forward_params_init(&p);
  set_forward_fields(bytes, Shape(bytes), &p);
  const std::vector<fa3_tensor*> tensors = {&p.q,   &p.k,    &p.v,          &p.o,
                                            &p.lse, &p.sink, &p.page_table, &p.batch_index};
  spoil_some(bytes, &p, tensors);
  ask_and_run(p, tensors, fa3_forward_supported, fa3_forward_workspace_size, fa3_forward_plan_text,
              fa3_forward);
}

void backward(FuzzedDataProvider& bytes) {
  fa3_backward_params p;
  fa3_backward_params_init(&p);
  const Shape shape(bytes);
  set_forward_fields(bytes, shape, &p);
  p.d_o = p.o;
  p.dq = p.q;
  p.dk = p.k;
  p.dv = p.v;
  if (p.sink.rank > 0) p.dsink = p.sink;
  if (bytes.ConsumeBool()) p.d_lse = p.lse;
  const std::vector<fa3_tensor*> tensors = {&p.q,   &p.k,  &p.v,  &p.o,  &p.lse,   &p.sink,
                                            &p.d_o, &p.dq, &p.dk, &p.dv, &p.dsink, &p.d_lse};
  spoil_some(bytes, &p, tensors);
  ask_and_run(p, tensors, fa3_backward_supported, fa3_backward_workspace_size,
              fa3_backward_plan_text, fa3_backward);
}

void merge(FuzzedDataProvider& bytes) {
  fa3_merge_params p;
  fa3_merge_params_init(&p);
  const Shape s(bytes);
  const int64_t parts = bytes.ConsumeIntegralInRange(0, 4);
  p.o_partial = dense(FA3_FLOAT32, {parts, s.batch, s.rows_q, s.heads_q, s.dim_v});
  p.lse_partial = dense(FA3_FLOAT32, {parts, s.batch, s.heads_q, s.rows_q});
  p.o = dense(s.dtype, {s.batch, s.rows_q, s.heads_q, s.dim_v});
  if (bytes.ConsumeBool()) p.lse = dense(FA3_FLOAT32, {s.batch, s.heads_q, s.rows_q});
  const std::vector<fa3_tensor*> tensors = {&p.o_partial, &p.lse_partial, &p.o, &p.lse};
  p.num_threads = 1;
  for (int count = bytes.ConsumeIntegralInRange(0, 2); count > 0; --count) spoil(bytes, tensors);
  Memory memory;
  for (fa3_tensor* tensor : tensors) {
    if (!memory.back(tensor)) return;
  }
  const fa3_status ran = fa3_merge(&p, nullptr);
  check((ran == FA3_OK) == (*fa3_last_error() == '\0'), "status and sentence disagree");
  check(ran != FA3_INTERNAL_ERROR, "a defect was reported");
}

}  // namespace
}  // namespace fa3::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  switch (bytes.ConsumeIntegralInRange(0, 2)) {
    case 0:
      fa3::fuzz::forward(bytes);
      break;
    case 1:
      fa3::fuzz::backward(bytes);
      break;
    default:
      fa3::fuzz::merge(bytes);
  }
  return 0;
}
