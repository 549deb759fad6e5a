// SPDX-License-Identifier: Apache-2.0
//
// Appending to latent caches and reading their rows by the kernels for GPUs, as they stand, on
// lanes of the host: the bytes of the CPU engine, gaps and padding included.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "api/describe/describe_mla.h"
#include "engine/cpu/latent/rows.h"
#include "engine/cuda/kernels/latent_rows.cu"
#include "runtime.h"
#include "support/random.h"

namespace fa3::cuda {
namespace {

struct Format {
  const char* name;
  fa3_mla_rows rows;
  fa3_dtype dtype;      // of the cache
  int64_t elements;     // of a row
  int64_t page_stride;  // in elements, of pages of 5 rows
};
// Pages of TENSOR rows are not aligned to 16 bytes.
const Format kFormats[] = {
    {"latent", FA3_MLA_ROWS_LATENT, FA3_BFLOAT16, 576, 6 * 576},
    {"latent fp32", FA3_MLA_ROWS_LATENT, FA3_FLOAT32, 512, 5 * 512},
    {"group128", FA3_MLA_ROWS_GROUP128, FA3_FLOAT8_E4M3, 656, 5 * 656 + 32},
    {"v4", FA3_MLA_ROWS_V4, FA3_FLOAT8_E4M3, 584, 5 * 584 + 56},
    {"tensor", FA3_MLA_ROWS_TENSOR, FA3_FLOAT8_E4M3, 576, 5 * 576 + 3},
    {"token", FA3_MLA_ROWS_TOKEN, FA3_FLOAT8_E4M3, 644, 5 * 644 + 12},
};
constexpr int64_t kPages = 3, kPageRows = 5, kRows = 9, kHeads = 2, kPositions = 6;

fa3_tensor tensor(void* data, int32_t dtype, std::vector<int64_t> shape,
                  std::vector<int64_t> stride) {
  fa3_tensor t{};
  t.data = data, t.dtype = dtype, t.device_type = FA3_CPU, t.rank = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(stride.begin(), stride.end(), t.stride);
  return t;
}

// Numbers of very different sizes: subnormal, beyond 448, and some that are infinite or NaN.
template <class T>
std::vector<T> numbers(size_t count, test::Random& random, bool finite = true) {
  std::vector<T> all(count);
  for (T& x : all) {
    double number = random.normal();
    if (random.one_in(9)) number *= std::exp2(double(random.between(-40, 12)));
    const double others[] = {INFINITY, -INFINITY, NAN};
    if (!finite && random.one_in(300)) number = others[random.below(3)];
    x = from_float<T>(float(number));
  }
  return all;
}

struct Ways {
  Status (*append)(const MlaAppendProblem&, void*);
  Status (*gather)(const MlaGatherProblem&, void*);
};

// What an engine makes of the same call: the cache, rotated queries and gathered rows.
template <class T>
std::vector<unsigned char> bytes_of(const Ways& ways, const Format& f, fa3_mla_scaling scaling,
                                    bool interleaved, int64_t pairs) {
  constexpr fa3_dtype kType = std::is_same_v<T, float>     ? FA3_FLOAT32
                              : std::is_same_v<T, Float16> ? FA3_FLOAT16
                                                           : FA3_BFLOAT16;
  test::Random random(uint64_t(f.rows) * 100 + uint64_t(pairs));
  const int64_t latent = f.rows == FA3_MLA_ROWS_V4 ? 448 : 512, stride = latent + 3;
  const int64_t size = f.dtype == FA3_FLOAT32 ? 4 : f.dtype == FA3_BFLOAT16 ? 2 : 1;
  const bool has_rope = f.rows != FA3_MLA_ROWS_LATENT || f.elements > 512;
  alignas(16) static unsigned char memory[1 << 16];
  std::memset(memory, 0xcd, sizeof(memory));
  std::vector<T> c_kv = numbers<T>(size_t(kRows * stride), random, size > 1);
  std::vector<T> k_pe = numbers<T>(size_t(kRows * 64), random);
  std::vector<T> q_pe = numbers<T>(size_t(kRows * kHeads * 64), random);
  std::vector<T> cos = numbers<T>(size_t(kPositions * 32), random), sin = cos;
  std::vector<int32_t> slots{0, 14, -1, 7, 15, INT32_MIN, 3, INT32_MAX, 8};
  std::vector<int32_t> positions{0, 5, 1, 2, 3, 4, 5, 0, 1};
  float descale[] = {0.03f, 0.07f};
  fa3_mla_append_params a{};
  a.struct_size = sizeof(a);
  a.cache.format = f.rows;
  a.cache.rows =
      tensor(memory, f.dtype, {kPages, kPageRows, f.elements}, {f.page_stride, f.elements, 1});
  if (f.rows == FA3_MLA_ROWS_TENSOR) a.cache.descale = tensor(descale, FA3_FLOAT32, {2}, {1});
  a.c_kv = tensor(c_kv.data(), kType, {kRows, latent}, {stride, 1});
  a.slots = tensor(slots.data(), FA3_INT32, {kRows}, {1});
  if (has_rope && pairs >= 0) a.k_pe = tensor(k_pe.data(), kType, {kRows, 64}, {64, 1});
  if (has_rope && pairs > 0) {
    a.rotary_cos = tensor(cos.data(), kType, {kPositions, pairs}, {32, 1});
    a.rotary_sin = tensor(sin.data(), kType, {kPositions, pairs}, {32, 1});
    a.positions = tensor(positions.data(), FA3_INT32, {kRows}, {1});
    a.q_pe = tensor(q_pe.data(), kType, {kRows, kHeads, 64}, {kHeads * 64, 64, 1});
    a.q_pe_rotated = a.q_pe;
  }
  a.rotary_interleaved = interleaved;
  a.scaling = scaling;
  MlaAppendProblem append;
  Status status = api::describe(a, &append);
  if (status.ok()) status = ways.append(append, nullptr);
  const int64_t channels = has_rope ? latent + 64 : latent;
  std::vector<T> gathered(size_t(kRows * channels));
  fa3_mla_gather_params g{};
  g.struct_size = sizeof(g);
  g.cache = a.cache;
  g.slots = a.slots;
  g.o = tensor(gathered.data(), kType, {kRows, channels}, {channels, 1});
  MlaGatherProblem gather;
  if (status.ok()) status = api::describe(g, &gather);
  if (status.ok()) status = ways.gather(gather, nullptr);
  EXPECT_TRUE(status.ok()) << f.name << ": " << status.message();
  std::vector<unsigned char> all(memory, memory + kPages * f.page_stride * size);
  const auto add = [&](std::vector<T>& x) {
    for (T& number : x) {
      if (std::isnan(to_float(number))) number = {};  // whose bits differ between machines
    }
    const auto* const bytes = reinterpret_cast<const unsigned char*>(x.data());
    all.insert(all.end(), bytes, bytes + x.size() * sizeof(T));
  };
  add(q_pe), add(gathered);
  return all;
}

class LatentRows : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    machine::add_kernel(append_latent_kernel<float>);
    machine::add_kernel(append_latent_kernel<__half>);
    machine::add_kernel(append_latent_kernel<__nv_bfloat16>);
    machine::add_kernel(gather_latent_kernel<float>);
    machine::add_kernel(gather_latent_kernel<__half>);
    machine::add_kernel(gather_latent_kernel<__nv_bfloat16>);
  }

  template <class T>
  static void expect_equal(bool interleaved, int64_t pairs) {
    for (const Format& f : kFormats) {
      for (const auto scaling :
           {FA3_MLA_SCALING_POW2, FA3_MLA_SCALING_EXACT, FA3_MLA_SCALING_POW2_SMALL}) {
        const bool is_v4 = f.rows == FA3_MLA_ROWS_V4;
        if (scaling != FA3_MLA_SCALING_POW2 && (scaling == FA3_MLA_SCALING_EXACT) == is_v4)
          continue;
        const auto expected =
            bytes_of<T>({cpu::run_mla_append, cpu::run_mla_gather}, f, scaling, interleaved, pairs);
        const auto found =
            bytes_of<T>({run_mla_append, run_mla_gather}, f, scaling, interleaved, pairs);
        EXPECT_EQ(machine::take_launch_error(), "");
        const auto off = std::ranges::mismatch(expected, found);
        EXPECT_EQ(off.in1, expected.end())
            << f.name << ", byte " << off.in1 - expected.begin() << " of " << expected.size();
      }
    }
  }
};

TEST_F(LatentRows, have_the_bytes_of_the_cpu) {
  expect_equal<BFloat16>(false, 32);
  expect_equal<Float16>(true, 32);
  expect_equal<float>(false, 20);
}
TEST_F(LatentRows, are_written_without_rotation_and_without_rope) {
  expect_equal<BFloat16>(false, 0);
  expect_equal<float>(false, -1);
}

}  // namespace
}  // namespace fa3::cuda
