// SPDX-License-Identifier: Apache-2.0
#include "support/cases/fp8.h"

#include <fa3/tensor.h>

#include <algorithm>
#include <cmath>

#include "support/limits.h"
#include "support/random.h"

namespace fa3::test {
namespace {

// A cache holds more rows than are used, and there may be more scales than rows need.
constexpr int64_t kSpareBlocks = 3;

int64_t blocks(int64_t rows) {
  return (rows + FA3_DESCALE_ROWS - 1) / FA3_DESCALE_ROWS;
}

// One operand of a case: what it is and where its scales are.
struct Operand {
  bool is_q;
  Scales scales;
  int64_t heads_per_scale;
  const Tensor& numbers;
  const Tensor& descale;
  const Tensor* mean;  // null: none
};

Tensor plain_of(const Case& c, const Operand& x) {
  Tensor plain(x.numbers.shape(), FA3_FLOAT32, c.in);
  plain.fill_guards(kNaN);
  const Shape& shape = plain.shape();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) plain.fill_row(b, row, kNaN);
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence at = x.is_q ? c.sequence_q(b) : c.sequence_k(b);
    for (int64_t row = 0; row < at.used; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const double scale = scale_at(x.scales, x.descale, b, row, head / x.heads_per_scale);
        for (int64_t col = 0; col < shape.dim; ++col) {
          const double mean = x.mean == nullptr ? 0 : double{x.mean->get(b, 0, head, col)};
          const double number = x.numbers.get(at.batch, at.first + row, head, col);
          plain.set(at.batch, at.first + row, head, col, static_cast<float>(number * scale + mean));
        }
      }
    }
  }
  return plain;
}

Tensor widened(const Tensor& tensor, Layout layout) {
  Tensor wide(tensor.shape(), FA3_FLOAT32, layout);
  const Shape& shape = tensor.shape();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t c = 0; c < shape.dim; ++c) {
          wide.set(b, row, head, c, tensor.get(b, row, head, c));
        }
      }
    }
  }
  return wide;
}

// Float8 numbers are of size 20: scales near 1/20 make them normal again. Of few bits, so that
// float32 holds number * scale + mean.
void randomize_descale(Scales scales, const Case& c, const Side& side, uint64_t seed,
                       Tensor* descale) {
  Random random(seed);
  const Shape shape = descale->shape();
  for (int64_t b = 0; b < shape.batch; ++b) {
    const int64_t used = (&side == &c.q ? c.sequence_q(b) : c.sequence_k(b)).used;
    const int64_t known = scales == Scales::block ? blocks(used) : 1;
    for (int64_t block = 0; block < shape.rows; ++block) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const float scale = 0x1p-10f * static_cast<float>(random.between(16, 96));
        descale->set(b, block, head, 0, block < known ? scale : kNaN);
      }
    }
  }
}

}  // namespace

Tensor make_descale(Scales scales, const Case& c, const Side& side, int64_t heads, Layout layout) {
  switch (scales) {
    case Scales::none:
      return {};
    case Scales::tensor:
      return {{1, 1, 1, 1}, FA3_FLOAT32, layout};
    case Scales::head:
      return {{c.batch, 1, heads, 1}, FA3_FLOAT32, layout};
    case Scales::block:
      return {{c.batch, blocks(side.tensor_rows()) + kSpareBlocks, heads, 1}, FA3_FLOAT32, layout};
  }
  return {};
}

Tensor make_mean(const Case& c, int64_t heads, int64_t dim, Layout layout) {
  return {{c.batch, 1, heads, dim}, FA3_FLOAT32, layout};
}

fa3_tensor descale_view(Scales scales, const Tensor& descale) {
  if (scales == Scales::none) return {};
  if (scales == Scales::tensor) return descale.head_vector();
  fa3_tensor view = descale.dense_lse();
  if (scales == Scales::head) view.rank = 2;
  return view;
}

fa3_tensor mean_view(const Tensor& mean) {
  const fa3_tensor dense = mean.dense();
  return strided(dense.data, FA3_FLOAT32, {dense.shape[0], dense.shape[2], dense.shape[3]},
                 {dense.stride[0], dense.stride[2], 1});
}

int64_t place_of_key(int64_t key) {
  const int64_t i = key % FA3_TRANSPOSED_KEYS;
  return key - i + 4 * (i / 2 % 4) + 2 * (i / 8) + i % 2;
}

Tensor transposed_values(const Tensor& v) {
  const auto& [batch, rows, heads, dim] = v.shape();
  const int64_t places =
      (rows + FA3_TRANSPOSED_KEYS - 1) / FA3_TRANSPOSED_KEYS * FA3_TRANSPOSED_KEYS;
  Tensor memory({batch, heads, dim, places}, v.dtype());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t c = 0; c < dim; ++c) {
        for (int64_t key = rows - rows % FA3_TRANSPOSED_KEYS; key < places; ++key) {
          memory.set(b, head, c, place_of_key(key), 0);
        }
        for (int64_t key = 0; key < rows; ++key) {
          memory.set(b, head, c, place_of_key(key), v.get(b, key, head, c));
        }
      }
    }
  }
  return memory;
}

fa3_tensor transposed_view(const Tensor& memory, int64_t rows) {
  const fa3_tensor all = memory.dense();  // (batch, heads, dim, places)
  fa3_tensor view = all;
  const int64_t order[] = {0, 3, 1, 2};
  for (int dim = 0; dim < 4; ++dim) {
    view.shape[dim] = all.shape[order[dim]];
    view.stride[dim] = all.stride[order[dim]];
  }
  view.shape[1] = rows;
  return view;
}

float scale_at(Scales scales, const Tensor& descale, int64_t b, int64_t row, int64_t head) {
  switch (scales) {
    case Scales::none:
      return 1;
    case Scales::tensor:
      return descale.get(0, 0, 0, 0);
    case Scales::head:
      return descale.get(b, 0, head, 0);
    case Scales::block:
      return descale.get(b, row / FA3_DESCALE_ROWS, head, 0);
  }
  return 0;
}

void add_quantization(const Case& c, Inputs* in) {
  const uint64_t seed = 64 * c.seed;
  randomize_descale(c.fp8.q, c, c.q, seed + 60, &in->q_descale);
  randomize_descale(c.fp8.k, c, c.k, seed + 61, &in->k_descale);
  randomize_descale(c.fp8.v, c, c.k, seed + 62, &in->v_descale);
  for (Tensor* mean : {&in->k_mean, &in->v_mean}) {
    Random random(seed + (mean == &in->k_mean ? 63 : 64));
    const Shape& shape = mean->shape();
    for (int64_t i = 0; i < shape.size(); ++i) {
      const auto number = static_cast<float>(std::round(2 * random.normal() * 64) / 64);
      mean->set(i / shape.dim / shape.heads, 0, i / shape.dim % shape.heads, i % shape.dim, number);
    }
  }
}

Case dequantized(const Case& c) {
  if (!c.has_float8()) return c;
  Case plain = c;
  plain.fp8 = {};
  plain.dtype = FA3_FLOAT32;
  plain.o_float32 = true;
  return plain;
}

Inputs dequantized(const Case& c, const Inputs& in) {
  if (!c.has_float8()) return in;
  Inputs plain = make_shapes(dequantized(c));
  plain.q = c.dtype == FA3_FLOAT8_E4M3
                ? plain_of(c, {.is_q = true,
                               .scales = c.fp8.q,
                               .heads_per_scale = c.heads_q / c.scales_of_q(),
                               .numbers = in.q,
                               .descale = in.q_descale,
                               .mean = nullptr})
                : widened(in.q, c.in);
  plain.k = plain_of(c, {.is_q = false,
                         .scales = c.fp8.k,
                         .heads_per_scale = 1,
                         .numbers = in.k,
                         .descale = in.k_descale,
                         .mean = c.fp8.k_mean ? &in.k_mean : nullptr});
  plain.v = plain_of(c, {.is_q = false,
                         .scales = c.fp8.v,
                         .heads_per_scale = 1,
                         .numbers = in.v,
                         .descale = in.v_descale,
                         .mean = c.fp8.v_mean ? &in.v_mean : nullptr});
  plain.sink = in.sink;
  plain.gate = in.gate;
  return plain;
}

}  // namespace fa3::test
