// SPDX-License-Identifier: Apache-2.0
//
// The quantizer: every engine gives the reference's bits, and these mean what docs/numerics.md
// says.
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include "contract/fixture.h"
#include "core/dtype.h"
#include "support/cases/fp8.h"
#include "support/cases/inputs.h"
#include "support/engines.h"
#include "support/limits.h"
#include "support/oracle/compare.h"
#include "support/runs/ability.h"
#include "support/runs/placement.h"
#include "support/runs/run.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

struct Quantizing {
  Case c;  // its k is what is quantized
  Scales scale = Scales::block;
  bool centred = false, hadamard = false;
  int64_t rotary_pairs = 0;
  bool interleaved = false;
  bool transposed = false;
};

std::ostream& operator<<(std::ostream& out, const Quantizing& q) {
  return out << q.c << " scale=" << static_cast<int>(q.scale) << " centred=" << q.centred
             << " hadamard=" << q.hadamard << " rotary=" << q.rotary_pairs
             << (q.interleaved ? " interleaved" : "") << (q.transposed ? " transposed" : "");
}

constexpr uint64_t kSeed = 0x123456789abcdefu;

struct Quantized {
  Tensor y, descale, mean;
  std::string problem;  // of the call; "" if it went well

  // What row `row` of a sequence stands for.
  double value(const Quantizing& q, int64_t b, int64_t row, int64_t head, int64_t c) const {
    const Sequence at = q.c.sequence_k(b);
    const double number = y.get(at.batch, at.first + row, head, c);
    return number * scale(q, b, row, head) + (q.centred ? mean.get(b, 0, head, c) : 0);
  }
  double scale(const Quantizing& q, int64_t b, int64_t row, int64_t head) const {
    return scale_at(q.scale, descale, b, row, head);
  }
};

Tensor input_of(const Quantizing& q) {
  return make_inputs(q.c).k;
}

// Tables with one angle a pair and position.
std::pair<Tensor, Tensor> rotary_tables(const Quantizing& q) {
  const Shape shape{1, input_of(q).shape().rows, 1, q.rotary_pairs};
  Tensor cos(shape, FA3_FLOAT32), sin(shape, FA3_FLOAT32);
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t pair = 0; pair < q.rotary_pairs; ++pair) {
      const double angle = static_cast<double>(row) * std::pow(0.7, static_cast<double>(pair));
      cos.set(0, row, 0, pair, static_cast<float>(std::cos(angle)));
      sin.set(0, row, 0, pair, static_cast<float>(std::sin(angle)));
    }
  }
  return {cos, sin};
}

fa3_tensor table_view(const Tensor& table) {
  fa3_tensor view = table.dense();
  view.rank = 2;
  view.shape[0] = table.shape().rows;
  view.shape[1] = table.shape().dim;
  view.stride[0] = table.shape().dim;
  view.stride[1] = 1;
  return view;
}

Quantized quantize(const EngineUnderTest& engine, const Quantizing& q, const Tensor& x) {
  const Case& c = q.c;
  const auto& [batch, rows, heads, dim] = x.shape();
  const int64_t places =
      (rows + FA3_TRANSPOSED_KEYS - 1) / FA3_TRANSPOSED_KEYS * FA3_TRANSPOSED_KEYS;
  Quantized out{.y = q.transposed ? Tensor({batch, heads, dim, places}, FA3_FLOAT8_E4M3)
                                  : Tensor(x.shape(), FA3_FLOAT8_E4M3, c.out),
                .descale = make_descale(q.scale, c, c.k, c.heads_k, c.out),
                .mean = q.centred ? make_mean(c, c.heads_k, c.dim, c.out) : Tensor(),
                .problem = ""};
  const Inputs lengths = make_shapes(c);
  const auto [cos, sin] = rotary_tables(q);
  fa3_quantize_params params;
  fa3_quantize_params_init(&params);
  params.x = view_of(c.k, x);
  params.y = q.transposed ? transposed_view(out.y, rows) : view_of(c.k, out.y);
  params.transposed = q.transposed ? 1 : 0;
  params.descale = descale_view(q.scale, out.descale);
  if (q.centred) params.mean = mean_view(out.mean);
  if (q.rotary_pairs > 0) {
    params.rotary_cos = table_view(cos);
    params.rotary_sin = table_view(sin);
  }
  const fa3_options options = make_options(engine.id, c, lengths);
  params.cu_seqlens = options.cu_seqlens_k;
  params.seqused = options.seqused_k;
  params.num_threads = c.num_threads;
  params.engine = engine.id;
  params.hadamard = q.hadamard ? 1 : 0;
  params.seed = kSeed;
  params.rotary_interleaved = q.interleaved ? 1 : 0;

  Placement placement(engine.memory);
  placement.input(x, &params.x);
  placement.input(cos, &params.rotary_cos);
  placement.input(sin, &params.rotary_sin);
  placement.input(lengths.cu_k, &params.cu_seqlens);
  if (c.k.packed()) params.max_seqlen = *std::max_element(c.k.owned.begin(), c.k.owned.end());
  placement.input(c.k.used, &params.seqused);
  placement.output(&out.y, &params.y);
  placement.output(&out.descale, &params.descale);
  placement.output(&out.mean, &params.mean);
  size_t bytes = 0;
  if (fa3_quantize_workspace_size(&params, &bytes) != FA3_OK) {
    out.problem = fa3_last_error();
    return out;
  }
  void* workspace = placement.workspace(bytes);
  if (fa3_quantize(&params, workspace, bytes, nullptr) != FA3_OK) {
    out.problem = fa3_last_error();
    return out;
  }
  out.problem = placement.fetch();
  for (const Tensor* tensor : {&out.y, &out.descale, &out.mean}) {
    out.problem += tensor->find_unwritten() + tensor->find_damaged_guard();
  }
  return out;
}

constexpr EngineUnderTest kReference{.name = "reference", .id = FA3_ENGINE_REFERENCE};

// The tests know what they ask for: an engine may refuse features, and those are counted.
class Quantize : public testing::TestWithParam<EngineUnderTest> {
 protected:
  // What the engine gives, or nothing if it does not do this.
  std::optional<Quantized> run(const Quantizing& q, const Tensor& x) {
    Quantized out = quantize(GetParam(), q, x);
    if (out.problem.starts_with("no engine can run this call")) {
      leave_out(out.problem);
      return {};
    }
    EXPECT_EQ(out.problem, "") << q;
    ++done_;
    return out;
  }
  void TearDown() override {
    if (done_ == 0) GTEST_SKIP() << GetParam().name << " quantizes none of these cases";
  }

 private:
  int done_ = 0;
};
FA3_FOR_EVERY_ENGINE(Quantize);

Quantizing quantizing(int64_t rows, int64_t dim, fa3_dtype dtype = FA3_FLOAT32) {
  Quantizing q;
  q.c = dense_case(2, 1, rows, 3, 3, dim, 1, dtype);
  return q;
}

// All pairs of features.
std::vector<Quantizing> sample() {
  constexpr int64_t kDims[] = {64, 96, 1, 7, 80, 128};
  constexpr int64_t kRows[] = {130, 1, 64, 65, 0};
  constexpr fa3_dtype kDtypes[] = {FA3_FLOAT16, FA3_BFLOAT16, FA3_FLOAT32};
  std::vector<Quantizing> cases;
  for (const std::vector<int>& pick : all_pairs({6, 5, 3, 3, 2, 2, 3, 5, 5, 3}, 7)) {
    Quantizing q = quantizing(kRows[pick[1]], kDims[pick[0]], kDtypes[pick[2]]);
    q.scale = static_cast<Scales>(1 + pick[3]);
    q.centred = pick[4] == 1;
    q.hadamard = pick[5] == 1;
    q.rotary_pairs = pick[6] == 0 ? 0 : pick[6] == 1 ? q.c.dim / 2 : q.c.dim / 4;
    q.interleaved = pick[6] == 2;
    q.c.in = kLayouts[pick[7]];
    q.c.out = kLayouts[pick[8]];
    q.c.seed = cases.size() + 1;
    if (pick[9] == 1) {
      q.c.k = {.rows = 0, .owned = {3, 0, static_cast<int32_t>(kRows[pick[1]])}, .spare_rows = 4};
      q.c.batch = 3;
    } else if (pick[9] == 2) {
      q.c.k.used = {static_cast<int32_t>(kRows[pick[1]] / 2), 0};
    }
    cases.push_back(q);
  }
  return cases;
}

TEST_P(Quantize, gives_the_references_bits) {
  for (const Quantizing& q : sample()) {
    const Tensor x = input_of(q);
    const std::optional<Quantized> got = run(q, x);
    if (!got) continue;
    const Quantized want = quantize(kReference, q, x);
    ASSERT_EQ(want.problem, "") << q;
    EXPECT_TRUE(bits_equal("descale", got->descale, want.descale)) << q;
    EXPECT_TRUE(bits_equal("mean", got->mean, want.mean)) << q;
    EXPECT_TRUE(bits_equal("y", got->y, want.y)) << q;
  }
}

// More blocks of rows than a GPU's CTAs take at a time, and a last one with few rows.
TEST_P(Quantize, gives_the_references_bits_of_many_blocks) {
  const bool takes_many = GetParam().memory == FA3_CUDA;
  for (const bool transposed : {false, true}) {
    const int64_t rows = !takes_many ? 325 : transposed ? 6405 : 4325;
    Quantizing q =
        transposed ? quantizing(rows, 256, FA3_FLOAT16) : quantizing(rows, 128, FA3_BFLOAT16);
    q.centred = q.hadamard = true;
    q.transposed = transposed;
    const Tensor x = input_of(q);
    const std::optional<Quantized> got = run(q, x);
    if (!got) continue;
    const Quantized want = quantize(kReference, q, x);
    EXPECT_TRUE(bits_equal("descale", got->descale, want.descale)) << q;
    EXPECT_TRUE(bits_equal("mean", got->mean, want.mean)) << q;
    EXPECT_TRUE(bits_equal("y", got->y, want.y)) << q;
  }
}

// Numbers that lie, but for a rounding, in the middle between two of e4m3.
TEST_P(Quantize, gives_the_references_bits_where_one_rounding_decides) {
  const Quantizing q = quantizing(64, 128);
  Tensor x = input_of(q);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t row = 0; row < 64; ++row) x.fill_row(b, row, 0);
  }
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t head = 0; head < 3; ++head) {
      const float factor = 0.1f + 0.123f * static_cast<float>(3 * b + head);
      for (int64_t row = 0; row < 64; ++row) {
        const float step = 1 + 0x1p-23f * static_cast<float>(row % 8 - 4);
        for (int64_t c = 0; c < 126; ++c) {
          const float low = to_float(Float8E4M3{static_cast<uint8_t>(c)});
          const float high = to_float(Float8E4M3{static_cast<uint8_t>(c + 1)});
          x.set(b, row, head, c, (row == 0 ? high : (low + high) / 2 * step) * factor);
        }
      }
    }
  }
  const Quantized want = quantize(kReference, q, x);
  if (const auto got = run(q, x)) {
    EXPECT_TRUE(bits_equal("y", got->y, want.y));
  }
}

TEST_P(Quantize, depends_on_no_thread) {
  Quantizing q = quantizing(300, 64, FA3_BFLOAT16);
  q.centred = q.hadamard = true;
  const Tensor x = input_of(q);
  q.c.num_threads = 1;
  const auto want = run(q, x);
  q.c.num_threads = 7;
  if (const auto got = run(q, x)) {
    EXPECT_TRUE(bits_equal("y", got->y, want->y));
  }
}

// Half a unit of e4m3's last place: 2^-4 of a normal number, 2^-10 of the scale below.
TEST_P(Quantize, numbers_are_off_by_half_a_unit_and_scales_are_the_largest_number_over_448) {
  for (Scales scale : {Scales::block, Scales::head, Scales::tensor}) {
    for (bool centred : {false, true}) {
      Quantizing q = quantizing(200, 32);
      q.scale = scale;
      q.centred = centred;
      Tensor x = input_of(q);
      for (int64_t row = 128; row < 200; ++row)
        x.set(1, row, 2, 5, 1000);  // one channel, two blocks
      const auto found = run(q, x);
      if (!found) continue;
      const Quantized& out = *found;
      double largest_code = 0;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t row = 0; row < 200; ++row) {
          for (int64_t head = 0; head < 3; ++head) {
            for (int64_t c = 0; c < 32; ++c) {
              const double unit = out.scale(q, b, row, head);
              const double mean = centred ? out.mean.get(b, 0, head, c) : 0;
              const double want = x.get(b, row, head, c);
              const double allowed =
                  std::max(std::abs(want - mean) * 0x1.01p-4, unit * 0x1.01p-10) + 1e-6 * want;
              EXPECT_NEAR(out.value(q, b, row, head, c), want, allowed) << q;
              largest_code = std::max(largest_code, std::abs(double{out.y.get(b, row, head, c)}));
            }
          }
        }
      }
      EXPECT_EQ(largest_code, 448) << q;
      // Who shares a scale with the large numbers, or their mean, has a large one.
      EXPECT_EQ(out.scale(q, 1, 0, 2) < 0.1, scale == Scales::block && !centred) << q;
      EXPECT_EQ(out.scale(q, 0, 0, 0) < 0.1, scale != Scales::tensor) << q;
    }
  }
}

TEST_P(Quantize, hadamard_keeps_products_and_spreads_an_outlier) {
  for (int64_t dim : {64, 96, 128}) {
    Quantizing q = quantizing(64, dim);
    Tensor x = input_of(q);
    for (int64_t row = 0; row < 64; ++row) x.set(0, row, 0, 3, 50);
    const auto plain = run(q, x);
    q.hadamard = true;
    const auto found = run(q, x);
    if (!plain || !found) continue;
    const Quantized& mixed = *found;
    EXPECT_LT(mixed.scale(q, 0, 0, 0), 0.4 * plain->scale(q, 0, 0, 0)) << dim;
    for (int64_t row = 1; row < 64; ++row) {
      double want = 0, got = 0, size = 0;
      for (int64_t c = 0; c < dim; ++c) {
        want += double{x.get(0, 0, 0, c)} * double{x.get(0, row, 0, c)};
        got += mixed.value(q, 0, 0, 0, c) * mixed.value(q, 0, row, 0, c);
        size += std::abs(double{x.get(0, 0, 0, c)} * double{x.get(0, row, 0, c)});
      }
      EXPECT_NEAR(got, want, 0.05 * size) << dim;
    }
  }
}

// The ordinary call's numbers at their places, zeros behind the last.
TEST_P(Quantize, transposed_numbers_are_those_of_rows) {
  for (const int64_t rows : {1, 15, 64, 130}) {
    for (const int64_t dim : {8, 64, 80, 128, 256}) {
      Quantizing q = quantizing(rows, dim, dim == 64 ? FA3_FLOAT32 : FA3_BFLOAT16);
      q.centred = rows > 15;
      q.hadamard = dim > 64;
      q.scale = dim == 80 ? Scales::head : Scales::block;
      const Tensor x = input_of(q);
      Quantizing turned = q;
      turned.transposed = true;
      const auto want = run(q, x), got = run(turned, x);
      if (!want || !got) return;
      EXPECT_EQ(got->descale.element_bits(), want->descale.element_bits()) << turned;
      EXPECT_EQ(got->mean.element_bits(), want->mean.element_bits()) << turned;
      EXPECT_EQ(got->y.element_bits(), transposed_values(want->y).element_bits()) << turned;
    }
  }
}

TEST_P(Quantize, centring_takes_the_mean_of_used_rows_and_gives_it_back) {
  Quantizing q = quantizing(130, 16);
  q.c.k.used = {100, 130};
  q.centred = true;
  const Tensor x = input_of(q);  // rows from 100 on hold NaN
  const auto found = run(q, x);
  if (!found) return;
  const Quantized& out = *found;
  for (int64_t c = 0; c < 16; ++c) {
    double sum = 0;
    for (int64_t row = 0; row < 100; ++row) sum += x.get(0, row, 1, c);
    EXPECT_NEAR(out.mean.get(0, 0, 1, c), sum / 100, 1e-6);
  }
  for (int64_t c = 0; c < 16; ++c) EXPECT_EQ(out.y.get(0, 110, 1, c), 0);
}

TEST_P(Quantize, what_is_not_finite_becomes_nan_and_spoils_no_other_number) {
  for (float bad : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity}) {
    for (const bool wide : {true, false}) {
      Quantizing q = wide ? quantizing(100, 8) : quantizing(100, 32, FA3_BFLOAT16);
      q.centred = true;
      Tensor x = input_of(q);
      const auto clean = run(q, x);
      x.set(0, 70, 1, 3, bad);
      const auto found = run(q, x);
      if (!clean || !found) continue;
      const Quantized& out = *found;
      EXPECT_TRUE(bits_equal("y", out.y, quantize(kReference, q, x).y));
      EXPECT_TRUE(std::isnan(out.y.get(0, 70, 1, 3)));
      EXPECT_EQ(out.mean.get(0, 0, 1, 3), 0) << "a channel without a finite mean stays where it is";
      for (int64_t c = 0; c < q.c.dim; ++c) {
        if (c == 3) continue;
        EXPECT_EQ(out.mean.get(0, 0, 1, c), clean->mean.get(0, 0, 1, c));
        EXPECT_NEAR(out.value(q, 0, 70, 1, c), x.get(0, 70, 1, c), 0.3);
      }
      EXPECT_FALSE(std::isnan(out.y.get(0, 71, 1, 3)));
    }
  }
}

TEST_P(Quantize, the_smallest_and_the_largest_numbers_have_finite_scales) {
  for (float size : {0.0f, 1e-44f, 1e-39f, 3e38f}) {
    const Quantizing q = quantizing(64, 8);
    Tensor x = input_of(q);
    for (int64_t row = 0; row < 64; ++row) x.fill_row(0, row, size);
    const auto found = run(q, x);
    if (!found) continue;
    const Quantized& out = *found;
    EXPECT_GE(out.scale(q, 0, 0, 0), 0x1p-126);
    EXPECT_NEAR(out.value(q, 0, 5, 0, 0), size, size * 0.07 + 0x1p-136) << size;
  }
}

}  // namespace
}  // namespace fa3::test
