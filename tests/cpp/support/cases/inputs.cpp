// SPDX-License-Identifier: Apache-2.0
#include "support/cases/inputs.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "support/cases/fp8.h"
#include "support/limits.h"

namespace fa3::test {
namespace {

std::vector<int32_t> starts_of(const Side& side) {
  if (!side.packed()) return {};
  std::vector<int32_t> starts(side.owned.size() + 1, 0);
  std::partial_sum(side.owned.begin(), side.owned.end(), starts.begin() + 1);
  return starts;
}

// What the score of a key is raised by, in natural units.
float trend(const Case& c, int64_t key, int64_t keys) {
  const float position = static_cast<float>(key) / static_cast<float>(keys);
  switch (c.scores) {
    case Scores::rising:
      return c.amount * position;
    case Scores::falling:
      return c.amount * (1 - position);
    case Scores::step:
      return key < keys / 2 ? c.amount : 0;
    case Scores::first_key:
      return key == 0 ? c.amount : 0;
    case Scores::last_key:
      return key == keys - 1 ? c.amount : 0;
    default:
      return 0;
  }
}

int64_t rows_of(const Side& side, int64_t b) {
  return side.packed() ? side.owned[static_cast<size_t>(b)] : side.rows;
}

// Column 0 carries the trend: q = 1, k = trend / scale.
void add_trend(const Case& c, Inputs* inputs) {
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence q = c.sequence_q(b), k = c.sequence_k(b);
    const int64_t queries = rows_of(c.q, b), keys = rows_of(c.k, b);
    for (int64_t row = q.first; row < q.first + queries; ++row) {
      for (int64_t head = 0; head < c.heads_q; ++head) inputs->q.set(q.batch, row, head, 0, 1);
    }
    for (int64_t key = 0; key < keys; ++key) {
      const auto lead = static_cast<float>(trend(c, key, keys) / c.effective_scale());
      for (int64_t head = 0; head < c.heads_k; ++head) {
        inputs->k.set(k.batch, k.first + key, head, 0, lead);
      }
    }
  }
}

void spoil_one_element(const Case& c, Inputs* inputs) {
  const int64_t row = c.q.rows * 2 / 5, key = c.k.rows * 2 / 3;
  const int64_t q_head = c.heads_q - 1, kv_head = c.heads_k - 1, col = c.dim / 2;
  if (c.scores == Scores::nan_query) inputs->q.set(0, row, q_head, col, kNaN);
  if (c.scores == Scores::inf_query) inputs->q.set(0, row, q_head, col, kInfinity);
  if (c.scores == Scores::nan_key) inputs->k.set(0, key, kv_head, col, kNaN);
  if (c.scores == Scores::inf_key) inputs->k.set(0, key, kv_head, col, kInfinity);
  if (c.scores == Scores::nan_value) inputs->v.set(0, key, kv_head, c.dim_v / 2, kNaN);
}

// -inf times positive numbers: every score of the row, in each block of keys.
void take_weights_of_one_row(const Case& c, Inputs* inputs) {
  const int64_t row = c.q.rows * 2 / 5, kv_head = c.heads_k - 1;
  inputs->q.set(0, row, c.heads_q - 1, 0, -std::numeric_limits<float>::infinity());
  for (int64_t key = 0; key < c.k.rows; ++key) {
    inputs->k.set(0, key, kv_head, 0, std::abs(inputs->k.get(0, key, kv_head, 0)) + 1);
  }
}

Sequence sequence_of(const Case& c, const Side& side, int64_t b) {
  return &side == &c.q ? c.sequence_q(b) : c.sequence_k(b);
}

// All that a forward reads.
void randomize(const Case& c, Inputs* inputs) {
  const bool huge = c.scores == Scores::huge;
  inputs->q.randomize(8 * c.seed, (c.softcap > 0 ? double{c.softcap} / 4
                                   : huge        ? 300
                                                 : 1) *
                                      c.gain);
  inputs->k.randomize(8 * c.seed + 1, huge ? 30 : 1);
  inputs->v.randomize(8 * c.seed + 2);
  if (c.has_float8()) {
    if (c.dtype == FA3_FLOAT8_E4M3) inputs->q.randomize(8 * c.seed, 20 * c.gain);
    inputs->k.randomize(8 * c.seed + 1, 20);
    inputs->v.randomize(8 * c.seed + 2, 20);
    add_quantization(c, inputs);
  }
  if (c.gate != Gate::none) inputs->gate.randomize(8 * c.seed + 6, 2);
  if (c.sink) inputs->sink.randomize(8 * c.seed + 4, 2);
  if (c.scores >= Scores::rising && c.scores <= Scores::last_key) add_trend(c, inputs);
  if (c.scores >= Scores::nan_query) spoil_one_element(c, inputs);
  if (c.scores == Scores::no_weight) take_weights_of_one_row(c, inputs);
}

}  // namespace

bool is_used_row(const Case& c, const Side& side, int64_t batch, int64_t row) {
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence sequence = sequence_of(c, side, b);
    if (sequence.batch == batch && row >= sequence.first && row < sequence.first + sequence.used) {
      return true;
    }
  }
  return false;
}

void fill_unused_rows(const Case& c, const Side& side, float value, Tensor* tensor) {
  if (!side.packed() && side.used.empty()) return;
  const auto [batch, rows, heads, dim] = tensor->shape();
  std::vector<bool> used(static_cast<size_t>(batch * rows));
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence at = sequence_of(c, side, b);
    std::fill_n(used.begin() + at.batch * rows + at.first, at.used, true);
  }
  for (int64_t i = 0; i < batch * rows; ++i) {
    if (!used[static_cast<size_t>(i)]) tensor->fill_row(i / rows, i % rows, value);
  }
}

void fill_invisible(const Case& c, float value, Inputs* inputs) {
  fill_unused_rows(c, c.q, value, &inputs->q);
  fill_unused_rows(c, c.q, value, &inputs->d_o);
  if (c.d_lse) fill_unused_rows(c, c.q, value, &inputs->d_lse);
  if (c.gate != Gate::none) {
    fill_unused_rows(c, c.q, value, &inputs->gate);
    inputs->gate.fill_guards(value);
  }
  fill_unused_rows(c, c.k, value, &inputs->k);
  fill_unused_rows(c, c.k, value, &inputs->v);
  for (Tensor* tensor : {&inputs->q, &inputs->k, &inputs->v, &inputs->d_o}) {
    tensor->fill_guards(value);
  }
}

Inputs make_shapes(const Case& c) {
  return {.q = Tensor(c.q_shape(), c.dtype, c.in),
          .k = Tensor(c.k_shape(), c.kv_dtype(), c.in),
          .v = Tensor(c.v_shape(), c.kv_dtype(), c.in),
          .d_o = Tensor(c.o_shape(), c.o_dtype(), c.out),
          .sink = c.sink ? Tensor({1, 1, c.heads_q, 1}, FA3_FLOAT32) : Tensor(),
          .d_lse = c.d_lse ? Tensor(c.lse_shape(), FA3_FLOAT32, c.out) : Tensor(),
          .gate = c.gate != Gate::none ? Tensor(c.gate_shape(), c.gate_dtype, c.in) : Tensor(),
          .q_descale = make_descale(c.fp8.q, c, c.q, c.scales_of_q(), c.in),
          .k_descale = make_descale(c.fp8.k, c, c.k, c.heads_k, c.out),
          .v_descale = make_descale(c.fp8.v, c, c.k, c.heads_k, c.in),
          .k_mean = c.fp8.k_mean ? make_mean(c, c.heads_k, c.dim, c.out) : Tensor(),
          .v_mean = c.fp8.v_mean ? make_mean(c, c.heads_k, c.dim_v, c.in) : Tensor(),
          .mask = make_mask(c),
          .cu_q = starts_of(c.q),
          .cu_k = starts_of(c.k)};
}

Inputs make_forward_inputs(const Case& c) {
  Inputs inputs = make_shapes(c);
  randomize(c, &inputs);
  fill_invisible(c, kNaN, &inputs);
  return inputs;
}

Inputs make_inputs(const Case& c) {
  Inputs inputs = make_shapes(c);
  randomize(c, &inputs);
  inputs.d_o.randomize(8 * c.seed + 3);
  if (c.d_lse) inputs.d_lse.randomize(8 * c.seed + 5);
  fill_invisible(c, kNaN, &inputs);
  return inputs;
}

}  // namespace fa3::test
