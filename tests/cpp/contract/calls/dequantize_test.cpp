// SPDX-License-Identifier: Apache-2.0
//
// The quantizer's inverse: numbers are what docs/numerics.md says, rounded once, and those of a GPU
// have the CPU's bits.
#include <fa3/fp8.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include "contract/fixture.h"
#include "core/quantization.h"
#include "support/cases/fp8.h"
#include "support/cases/inputs.h"
#include "support/engines.h"
#include "support/oracle/compare.h"
#include "support/runs/ability.h"
#include "support/runs/placement.h"
#include "support/runs/run.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

struct Dequantizing {
  Case c;  // its k is what is dequantized
  fa3_dtype wide = FA3_BFLOAT16;
  bool hadamard = false;
  bool transposed = false;
};

std::ostream& operator<<(std::ostream& out, const Dequantizing& d) {
  return out << d.c << " wide=" << d.wide << " hadamard=" << d.hadamard
             << (d.transposed ? " transposed" : "");
}

constexpr uint64_t kSeed = 0x123456789abcdefu;

struct Written {
  Tensor x;
  fa3_status status = FA3_OK;
  std::string problem;  // "" if all went well
};

// `times` the same call, as one.
Written dequantize(fa3_device_type memory, const Dequantizing& d, const Inputs& in, int times = 1) {
  const Case& c = d.c;
  const Tensor turned = d.transposed ? transposed_values(in.k) : Tensor();
  const fa3_options options = make_options(FA3_ENGINE_AUTO, c, in);
  Placement placement(memory);
  std::vector<Written> written(static_cast<size_t>(times), {Tensor(in.k.shape(), d.wide, c.out)});
  std::vector<fa3_quantize_params> calls(written.size());
  std::vector<const fa3_quantize_params*> params;
  for (size_t i = 0; i < calls.size(); ++i) {
    fa3_quantize_params& p = calls[i];
    fa3_quantize_params_init(&p);
    p.x = view_of(c.k, written[i].x);
    p.y = d.transposed ? transposed_view(turned, in.k.shape().rows) : view_of(c.k, in.k);
    p.transposed = d.transposed ? 1 : 0;
    p.descale = descale_view(c.fp8.k, in.k_descale);
    if (c.fp8.k_mean) p.mean = mean_view(in.k_mean);
    p.cu_seqlens = options.cu_seqlens_k;
    p.seqused = options.seqused_k;
    p.num_threads = c.num_threads;
    p.hadamard = d.hadamard ? 1 : 0;
    p.seed = kSeed;
    placement.input(d.transposed ? turned : in.k, &p.y);
    placement.input(in.k_descale, &p.descale);
    if (c.fp8.k_mean) placement.input(in.k_mean, &p.mean);
    placement.input(in.cu_k, &p.cu_seqlens);
    if (c.k.packed()) p.max_seqlen = *std::max_element(c.k.owned.begin(), c.k.owned.end());
    placement.input(c.k.used, &p.seqused);
    placement.output(&written[i].x, &p.x);
    params.push_back(&p);
  }
  Written& last = written.back();
  last.status = fa3_dequantize_together(params.data(), times, nullptr);
  if (last.status != FA3_OK) {
    last.problem = fa3_last_error();
    return last;
  }
  last.problem = placement.fetch();
  for (const Written& each : written) {
    last.problem += each.x.find_unwritten() + each.x.find_damaged_guard();
    last.problem += bits_equal("x", each.x, last.x).message();
  }
  return last;
}

// H, which is its own inverse, and then the signs.
void turn_back(int64_t dim, double* row) {
  const int64_t block = hadamard_block(dim);
  const std::vector<double> from(row, row + dim);
  for (int64_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < block; ++j) {
      const bool negative = __builtin_popcountll(static_cast<uint64_t>(c % block & j)) % 2 != 0;
      const double x = from[static_cast<size_t>(c / block * block + j)];
      sum += negative ? -x : x;
    }
    row[c] = sum / std::sqrt(static_cast<double>(block)) * (is_negated(kSeed, c) ? -1 : 1);
  }
}

// What the numbers stand for, in double precision; 0 in rows that no sequence uses.
Values exact(const Dequantizing& d, const Inputs& in) {
  Values values = dequantized(d.c, in).k.values();
  const Shape& shape = values.shape;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        double* const numbers = values.row(b, row, head);
        if (!is_used_row(d.c, d.c.k, b, row)) {
          std::fill_n(numbers, shape.dim, 0.0);
        } else if (d.hadamard) {
          turn_back(shape.dim, numbers);
        }
      }
    }
  }
  return values;
}

// Half of the distance to the next number of the type.
double half_a_unit(fa3_dtype dtype, double x) {
  const int bits = dtype == FA3_FLOAT32 ? 24 : dtype == FA3_FLOAT16 ? 11 : 8;
  const int smallest = dtype == FA3_FLOAT16 ? -14 : -126;
  const int exponent = x == 0 ? smallest : std::max(std::ilogb(x), smallest);
  return std::ldexp(0.5, exponent - bits + 1);
}

class Dequantize : public testing::TestWithParam<EngineUnderTest> {
 protected:
  std::optional<Tensor> run(const Dequantizing& d, const Inputs& in, int times = 1) {
    Written found = dequantize(GetParam().memory, d, in, times);
    if (found.status == FA3_UNSUPPORTED) {
      leave_out(found.problem);
      return {};
    }
    EXPECT_EQ(found.problem, "") << d;
    ++done_;
    return found.x;
  }
  void TearDown() override {
    if (done_ == 0) GTEST_SKIP() << GetParam().name << " dequantizes none of these cases";
  }

 private:
  int done_ = 0;
};
FA3_FOR_EVERY_ENGINE(Dequantize);

Dequantizing dequantizing(int64_t rows, int64_t dim, fa3_dtype wide) {
  Dequantizing d{.c = dense_case(2, 1, rows, 3, 3, dim, 1, FA3_FLOAT8_E4M3), .wide = wide};
  d.c.fp8 = {.q = Scales::tensor, .k = Scales::block, .v = Scales::tensor, .k_mean = true};
  return d;
}

// All pairs of features.
std::vector<Dequantizing> sample() {
  constexpr int64_t kDims[] = {64, 96, 1, 7, 80, 128, 256};
  constexpr int64_t kRows[] = {130, 1, 64, 65, 0};
  constexpr fa3_dtype kWide[] = {FA3_FLOAT16, FA3_BFLOAT16, FA3_FLOAT32};
  std::vector<Dequantizing> cases;
  for (const std::vector<int>& pick : all_pairs({7, 5, 3, 3, 2, 2, 5, 5, 4}, 7)) {
    const int64_t rows = kRows[pick[1]];
    Dequantizing d = dequantizing(rows, kDims[pick[0]], kWide[pick[2]]);
    d.c.fp8.k = static_cast<Scales>(1 + pick[3]);
    d.c.fp8.k_mean = pick[4] == 1;
    d.hadamard = pick[5] == 1;
    d.c.in = kLayouts[pick[6]];
    d.c.out = kLayouts[pick[7]];
    d.c.seed = cases.size() + 1;
    if (pick[8] == 1) {
      d.c.k = {.rows = 0, .owned = {3, 0, static_cast<int32_t>(rows)}, .spare_rows = 4};
      d.c.batch = 3;
    } else if (pick[8] == 2) {
      d.c.k.used = {static_cast<int32_t>(rows / 2), 0};
    } else if (pick[8] == 3) {
      d.transposed = true;
    }
    cases.push_back(d);
  }
  return cases;
}

TEST_P(Dequantize, rounds_what_numbers_stand_for_once) {
  for (const Dequantizing& d : sample()) {
    const Inputs in = make_inputs(d.c);
    const std::optional<Tensor> got = run(d, in);
    if (!got) continue;
    const Values want = exact(d, in), found = got->values();
    double largest = 0;
    for (double x : want.numbers) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < want.numbers.size(); ++i) {
      const double allowed = half_a_unit(d.wide, want.numbers[i]) * 1.001 + largest * 0x1p-20;
      ASSERT_NEAR(found.numbers[i], want.numbers[i], allowed) << d << " number " << i;
    }
  }
}

TEST_P(Dequantize, gives_the_bits_of_the_cpu_in_one_call_of_three) {
  if (GetParam().memory == FA3_CPU) GTEST_SKIP() << "these are the bits of the CPU";
  for (const Dequantizing& d : sample()) {
    const Inputs in = make_inputs(d.c);
    const std::optional<Tensor> got = run(d, in, 3);
    if (!got) continue;
    const Written want = dequantize(FA3_CPU, d, in);
    ASSERT_EQ(want.problem, "") << d;
    EXPECT_TRUE(bits_equal("x", *got, want.x)) << d;
  }
}

TEST_P(Dequantize, reads_what_the_quantizer_wrote) {
  for (const int64_t dim : {48, 64, 256}) {
    Dequantizing d = dequantizing(130, dim, FA3_FLOAT32);
    Inputs in = make_inputs(d.c);
    const Tensor x = make_inputs(dense_case(2, 1, 130, 3, 3, dim, 1, FA3_FLOAT32)).k;
    in.k_descale = Tensor({2, 3, 3, 1}, FA3_FLOAT32, Layout::bhsd);
    fa3_quantize_params p;
    fa3_quantize_params_init(&p);
    p.x = x.dense();
    p.y = in.k.dense();
    p.descale = descale_view(Scales::block, in.k_descale);
    p.mean = mean_view(in.k_mean);
    p.hadamard = 1;
    p.seed = kSeed;
    GuardedWorkspace workspace(size_t{1} << 22);
    ASSERT_EQ(fa3_quantize(&p, workspace.data(), 1 << 22, nullptr), FA3_OK) << fa3_last_error();
    d.hadamard = true;
    const std::optional<Tensor> got = run(d, in);
    if (!got) continue;
    double difference = 0, size = 0;
    const Values found = got->values(), want = x.values();
    for (size_t i = 0; i < want.numbers.size(); ++i) {
      difference += std::pow(found.numbers[i] - want.numbers[i], 2);
      size += std::pow(want.numbers[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / size), 0.03) << d;
  }
}

}  // namespace
}  // namespace fa3::test
