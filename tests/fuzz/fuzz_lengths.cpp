// SPDX-License-Identifier: Apache-2.0
//
// Packed sequences with any lengths. Wrong ones are refused; with right ones the CPU engine gives
// what the oracle gives, forward and backward, and reads nothing outside of its memory.
#include <algorithm>
#include <cmath>

#include "calls.h"

namespace fa3::fuzz {
namespace {

constexpr int64_t kHeads = 2, kKvHeads = 1, kDim = 8;

// int32 values that are mostly ascending from 0, as starts of sequences are, or lengths.
std::vector<int32_t> numbers(FuzzedDataProvider& bytes, int64_t count, bool ascending) {
  std::vector<int32_t> values;
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool any = bytes.ConsumeIntegralInRange(0, 31) == 31;
    int32_t value = any ? bytes.ConsumeIntegral<int32_t>() : bytes.ConsumeIntegralInRange(0, 9);
    if (ascending && !any) value = i == 0 ? 0 : sum += value;
    values.push_back(value);
  }
  return values;
}

// The numbers as a tensor with exactly their memory.
fa3_tensor vector(Memory& memory, const std::vector<int32_t>& values) {
  fa3_tensor view = dense(FA3_INT32, {static_cast<int64_t>(values.size())});
  memory.back(&view);
  std::copy(values.begin(), values.end(), static_cast<int32_t*>(view.data));
  return view;
}

struct Side {
  bool packed = true;
  int64_t rows = 0;  // of the whole tensor if packed, else of each sequence

  fa3_tensor tensor(int64_t batch, int64_t heads) const {
    if (packed) return dense(FA3_FLOAT32, {rows, heads, kDim});
    return dense(FA3_FLOAT32, {batch, rows, heads, kDim});
  }
};

Side make_side(FuzzedDataProvider& bytes, Memory& memory, int64_t batch, fa3_tensor* starts,
               fa3_tensor* used) {
  Side side;
  side.packed = bytes.ConsumeIntegralInRange(0, 3) != 0;
  side.rows = bytes.ConsumeIntegralInRange(0, 30);
  if (side.packed) {
    const std::vector<int32_t> values = numbers(bytes, batch + 1, true);
    if (bytes.ConsumeIntegralInRange(0, 15) != 15) side.rows = std::clamp(values.back(), 0, 99);
    *starts = vector(memory, values);
  }
  if (bytes.ConsumeBool()) *used = vector(memory, numbers(bytes, batch, false));
  return side;
}

bool agree(const fa3_tensor& a, const fa3_tensor& b) {
  int64_t count = a.rank > 0 ? 1 : 0;
  for (int dim = 0; dim < a.rank; ++dim) count *= a.shape[dim];
  const auto *x = static_cast<float*>(a.data), *y = static_cast<float*>(b.data);
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] != y[i] && !(std::fabs(x[i] - y[i]) <= 1e-3f * (1.0f + std::fabs(y[i])))) return false;
  }
  return true;
}

// Makes the same call on another engine, into other memory.
template <class Params>
Params on(fa3_engine_id engine, Params p, Memory& memory,
          const std::vector<fa3_tensor Params::*>& outputs) {
  p.options.engine = engine;
  for (const auto output : outputs) memory.back(&(p.*output));
  return p;
}

fa3_status forward(const fa3_forward_params& p, Memory& memory) {
  size_t bytes = 0;
  const fa3_status asked = fa3_forward_workspace_size(&p, &bytes);
  return asked != FA3_OK ? asked : fa3_forward(&p, memory.workspace(bytes), bytes, nullptr);
}

fa3_status backward(const fa3_backward_params& p, Memory& memory) {
  size_t bytes = 0;
  const fa3_status asked = fa3_backward_workspace_size(&p, &bytes);
  return asked != FA3_OK ? asked : fa3_backward(&p, memory.workspace(bytes), bytes, nullptr);
}

void run(FuzzedDataProvider& bytes) {
  Memory memory;
  const int64_t batch = bytes.ConsumeIntegralInRange(0, 6);
  fa3_forward_params p;
  fa3_forward_params_init(&p);
  fa3_options& options = p.options;
  const Side q = make_side(bytes, memory, batch, &options.cu_seqlens_q, &options.seqused_q);
  const Side k = make_side(bytes, memory, batch, &options.cu_seqlens_k, &options.seqused_k);
  if (bytes.ConsumeIntegralInRange(0, 7) == 7) options.max_seqlen_q = extent(bytes);
  if (bytes.ConsumeIntegralInRange(0, 7) == 7) options.max_seqlen_k = extent(bytes);
  options.causal = bytes.ConsumeBool() ? 1 : 0;
  if (bytes.ConsumeBool()) options.window_left = bytes.ConsumeIntegralInRange(-1, 12);
  if (bytes.ConsumeBool()) options.window_right = bytes.ConsumeIntegralInRange(-1, 12);
  if (bytes.ConsumeBool()) options.attention_chunk = bytes.ConsumeIntegralInRange(0, 12);
  options.num_threads = 1;
  p.q = q.tensor(batch, kHeads);
  p.k = p.v = k.tensor(batch, kKvHeads);
  p.o = p.q;
  p.lse =
      q.packed ? dense(FA3_FLOAT32, {kHeads, q.rows}) : dense(FA3_FLOAT32, {batch, kHeads, q.rows});
  for (fa3_tensor* tensor : {&p.q, &p.k, &p.v}) memory.back(tensor);

  using F = fa3_forward_params;
  const std::vector<fa3_tensor F::*> written = {&F::o, &F::lse};
  const F by_cpu = on(FA3_ENGINE_CPU, p, memory, written);
  const F by_oracle = on(FA3_ENGINE_REFERENCE, p, memory, written);
  const fa3_status status = forward(by_cpu, memory);
  check(status == FA3_OK || status == FA3_INVALID_ARGUMENT, "forward: an unexpected status");
  check(forward(by_oracle, memory) == status, "forward: two engines differ on the lengths");
  if (status != FA3_OK) return;
  check(agree(by_cpu.o, by_oracle.o), "forward: o is wrong");
  check(agree(by_cpu.lse, by_oracle.lse), "forward: lse is wrong");

  using B = fa3_backward_params;
  B b;
  fa3_backward_params_init(&b);
  b.options = options;
  b.q = p.q;
  b.k = p.k;
  b.v = p.v;
  b.o = by_oracle.o;
  b.lse = by_oracle.lse;
  b.d_o = p.q;  // any numbers
  b.dq = p.q;
  b.dk = b.dv = p.k;
  const std::vector<fa3_tensor B::*> gradients = {&B::dq, &B::dk, &B::dv};
  const B back_by_cpu = on(FA3_ENGINE_CPU, b, memory, gradients);
  const B back_by_oracle = on(FA3_ENGINE_REFERENCE, b, memory, gradients);
  check(backward(back_by_cpu, memory) == FA3_OK, "backward: refuses what forward took");
  check(backward(back_by_oracle, memory) == FA3_OK, "backward: the oracle refuses");
  for (const auto gradient : gradients) {
    check(agree(back_by_cpu.*gradient, back_by_oracle.*gradient), "backward: a gradient is wrong");
  }
}

}  // namespace
}  // namespace fa3::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  fa3::fuzz::run(bytes);
  return 0;
}
