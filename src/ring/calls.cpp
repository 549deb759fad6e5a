// SPDX-License-Identifier: Apache-2.0
#include "ring/calls.h"

#include <algorithm>

namespace fa3::ring {
namespace {

// A (1, ...) tensor as packed ones are.
void drop_batch(fa3_tensor* tensor) {
  if (tensor->rank == 0) return;
  --tensor->rank;
  for (int dim = 0; dim < tensor->rank; ++dim) {
    tensor->shape[dim] = tensor->shape[dim + 1];
    tensor->stride[dim] = tensor->stride[dim + 1];
  }
}

}  // namespace

void set_mask(fa3_options* options, const Call& call) {
  const bool causal = call.window.left == kUnbounded && call.window.right == 0 && call.shift == 0;
  options->causal = causal ? 1 : 0;
  options->window_left = call.window.left;
  options->window_right = causal ? FA3_WINDOW_UNBOUNDED : call.window.right;
  options->window_shift = static_cast<int32_t>(call.shift);
}

KeysAndValues keys_of_call(const KeysAndValues& of_stage, const Stage& stage, const Call& call) {
  const int64_t first = stage.hull().begin;
  const Range here = {call.keys.begin - first, call.keys.end - first};
  return {rows_of(of_stage.k, here), rows_of(of_stage.v, here)};
}

void set_lengths(fa3_options* options, const fa3_tensor& q, const Step& step, int32_t* lengths,
                 std::initializer_list<fa3_tensor*> tensors) {
  if (step.call.cu_rows.empty()) return;
  const auto view = [&](const std::vector<int32_t>& of, size_t at, int64_t* longest) {
    for (size_t i = 1; i < of.size(); ++i) {
      *longest = std::max<int64_t>(*longest, of[i] - of[i - 1]);
    }
    fa3_tensor made{};
    made.data = lengths == nullptr ? nullptr : lengths + at;
    made.dtype = FA3_INT32;
    made.device_type = q.device_type;
    made.device_index = q.device_index;
    made.rank = 1;
    made.shape[0] = static_cast<int64_t>(of.size());
    made.stride[0] = 1;
    return made;
  };
  const size_t of_rows = step.lengths_at, of_keys = of_rows + step.call.cu_rows.size();
  options->cu_seqlens_q = view(step.call.cu_rows, of_rows, &options->max_seqlen_q);
  options->cu_seqlens_k = view(step.call.cu_keys, of_keys, &options->max_seqlen_k);
  for (fa3_tensor* tensor : tensors) drop_batch(tensor);
}

}  // namespace fa3::ring
