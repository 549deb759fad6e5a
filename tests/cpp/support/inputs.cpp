// SPDX-License-Identifier: Apache-2.0
#include "support/inputs.h"

#include <limits>
#include <numeric>

namespace fa3::test {
namespace {

std::vector<int32_t> starts_of(const Side& side) {
  if (!side.packed()) return {};
  std::vector<int32_t> starts(side.owned.size() + 1, 0);
  std::partial_sum(side.owned.begin(), side.owned.end(), starts.begin() + 1);
  return starts;
}

}  // namespace

bool is_used_row(const Case& c, const Side& side, int64_t batch, int64_t row) {
  const bool is_q = &side == &c.q;
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence sequence = is_q ? c.sequence_q(b) : c.sequence_k(b);
    if (sequence.batch == batch && row >= sequence.first && row < sequence.first + sequence.used) {
      return true;
    }
  }
  return false;
}

void fill_unused_rows(const Case& c, const Side& side, float value, Tensor* tensor) {
  if (!side.packed() && side.used.empty()) return;
  for (int64_t b = 0; b < tensor->shape().batch; ++b) {
    for (int64_t row = 0; row < tensor->shape().rows; ++row) {
      if (!is_used_row(c, side, b, row)) tensor->fill_row(b, row, value);
    }
  }
}

void fill_invisible(const Case& c, float value, Inputs* inputs) {
  fill_unused_rows(c, c.q, value, &inputs->q);
  fill_unused_rows(c, c.q, value, &inputs->d_o);
  if (c.d_lse) fill_unused_rows(c, c.q, value, &inputs->d_lse);
  fill_unused_rows(c, c.k, value, &inputs->k);
  fill_unused_rows(c, c.k, value, &inputs->v);
  for (Tensor* tensor : {&inputs->q, &inputs->k, &inputs->v, &inputs->d_o}) {
    tensor->fill_guards(value);
  }
}

Inputs make_inputs(const Case& c) {
  Inputs inputs{.q = Tensor(c.q_shape(), c.dtype, c.in),
                .k = Tensor(c.k_shape(), c.dtype, c.in),
                .v = Tensor(c.v_shape(), c.dtype, c.in),
                .d_o = Tensor(c.o_shape(), c.o_dtype(), c.out),
                .sink = {},
                .d_lse = {},
                .cu_q = starts_of(c.q),
                .cu_k = starts_of(c.k)};
  inputs.q.randomize(8 * c.seed, c.softcap > 0 ? c.gain * double{c.softcap} / 4 : c.gain);
  inputs.k.randomize(8 * c.seed + 1);
  inputs.v.randomize(8 * c.seed + 2);
  inputs.d_o.randomize(8 * c.seed + 3);
  if (c.sink) {
    inputs.sink = Tensor({1, 1, c.heads_q, 1}, FA3_FLOAT32);
    inputs.sink.randomize(8 * c.seed + 4, 2);
  }
  if (c.d_lse) {
    inputs.d_lse = Tensor(c.lse_shape(), FA3_FLOAT32, c.out);
    inputs.d_lse.randomize(8 * c.seed + 5);
  }
  fill_invisible(c, std::numeric_limits<float>::quiet_NaN(), &inputs);
  return inputs;
}

}  // namespace fa3::test
