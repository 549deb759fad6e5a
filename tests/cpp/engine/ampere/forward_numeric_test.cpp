// SPDX-License-Identifier: Apache-2.0
//
// The forward kernels' sources with numbers, on the host: every feature against the textbook, and
// their barriers in many orders.
#include <gtest/gtest.h>

#include "numeric/forward_run.h"
#include "numeric/orders.h"

namespace fa3::ampere {
namespace {

class Numeric : public testing::TestWithParam<NumericCase> {};

TEST_P(Numeric, agrees_with_the_textbook) {
  NumericRun run(GetParam());
  const std::string problem = run.problem();
  EXPECT_EQ(problem, "") << run.words();
}

MaskRule causal() {
  return {.right = 0};
}

const NumericCase kCases[] = {
    {.name = "one_block", .seqlen_q = 20, .seqlen_k = 40},
    {.name = "several_blocks", .heads_q = 2, .heads_k = 2, .seqlen_q = 140, .seqlen_k = 200},
    {.name = "many_keys", .seqlen_q = 20, .seqlen_k = 1100},
    {.name = "three_blocks_of_128_columns", .seqlen_q = 140, .seqlen_k = 190, .d = 128, .dv = 128},
    {.name = "causal_of_192_columns",
     .heads_q = 2,
     .seqlen_q = 140,
     .seqlen_k = 140,
     .d = 192,
     .dv = 128,
     .mask = causal()},
    {.name = "one_stage_of_128_columns",
     .seqlen_q = 140,
     .seqlen_k = 110,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .smem_of_sm = 100 << 10},
    {.name = "splits_of_128_columns",
     .batch = 2,
     .heads_q = 2,
     .seqlen_q = 70,
     .seqlen_k = 400,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .used_k = {400, 200},
     .num_splits = 2},
    {.name = "causal", .seqlen_q = 150, .seqlen_k = 230, .mask = causal()},
    {.name = "causal_rows_without_keys", .seqlen_q = 150, .seqlen_k = 70, .mask = causal()},
    {.name = "fp16", .seqlen_q = 40, .seqlen_k = 100, .dtype = DType::float16},
    {.name = "columns_96", .seqlen_q = 40, .seqlen_k = 100, .d = 96, .dv = 96, .mask = causal()},
    {.name = "columns_128", .seqlen_q = 140, .seqlen_k = 150, .d = 128, .dv = 128},
    {.name = "columns_128_of_an_a100",
     .seqlen_q = 140,
     .seqlen_k = 150,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .smem_of_sm = 164 << 10},
    {.name = "columns_192_128", .seqlen_q = 70, .seqlen_k = 80, .d = 192, .dv = 128},
    {.name = "columns_256", .seqlen_q = 70, .seqlen_k = 80, .d = 256, .dv = 256, .mask = causal()},
    {.name = "columns_64_200", .seqlen_q = 10, .seqlen_k = 40, .d = 64, .dv = 200},
    {.name = "columns_16_8", .seqlen_q = 10, .seqlen_k = 40, .d = 16, .dv = 8},
    {.name = "tails_by_16_bytes", .seqlen_q = 10, .seqlen_k = 70, .d = 36, .dv = 44, .pad = 4},
    {.name = "by_8_bytes", .seqlen_q = 10, .seqlen_k = 70, .d = 36, .dv = 44},
    {.name = "by_4_bytes", .seqlen_q = 10, .seqlen_k = 70, .offset = 2},
    {.name = "by_elements",
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 10,
     .seqlen_k = 70,
     .d = 35,
     .dv = 33},
    {.name = "by_elements_float_output",
     .seqlen_q = 10,
     .seqlen_k = 70,
     .d = 35,
     .dv = 33,
     .float_output = true,
     .offset = 1},
    {.name = "float_output", .seqlen_q = 10, .seqlen_k = 70, .float_output = true},
    {.name = "dv_512", .seqlen_q = 10, .seqlen_k = 40, .dv = 400},
    {.name = "window", .seqlen_q = 140, .seqlen_k = 250, .mask = {.left = 30, .right = 20}},
    {.name = "window_beside_the_diagonal",
     .seqlen_q = 70,
     .seqlen_k = 70,
     .mask = {.left = 60, .right = -20}},
    {.name = "chunks", .seqlen_q = 140, .seqlen_k = 180, .mask = {.right = 0, .chunk = 48}},
    {.name = "softcap", .seqlen_q = 20, .seqlen_k = 150, .softcap = 1.5f},
    {.name = "softcap_of_large", .seqlen_q = 20, .seqlen_k = 150, .softcap = 30, .deviation = 30},
    {.name = "sink",
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 30,
     .seqlen_k = 20,
     .mask = causal(),
     .sink = true},
    {.name = "packed_heads",
     .heads_q = 8,
     .heads_k = 2,
     .seqlen_q = 9,
     .seqlen_k = 80,
     .mask = causal()},
    {.name = "many_packed_heads",
     .heads_q = 48,
     .heads_k = 1,
     .seqlen_q = 1,
     .seqlen_k = 80,
     .mask = causal()},
    {.name = "guard_recomputes",
     .seqlen_q = 20,
     .seqlen_k = 300,
     .deviation = 4,
     .loud_key = 10,
     .loudness = 1},
    {.name = "guard_rescales",
     .seqlen_q = 20,
     .seqlen_k = 300,
     .deviation = 30,
     .loud_key = 10,
     .loudness = 4},
    {.name = "rising", .seqlen_q = 20, .seqlen_k = 600, .deviation = 40},
    {.name = "packed",
     .batch = 4,
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 150,
     .seqlen_k = 90,
     .mask = causal(),
     .cu_q = {0, 5, 5, 150, 160},
     .cu_k = {0, 60, 70, 70, 90}},
    {.name = "used",
     .batch = 3,
     .seqlen_q = 20,
     .seqlen_k = 90,
     .used_q = {20, 0, 7},
     .used_k = {0, 90, 65}},
    {.name = "pages",
     .batch = 2,
     .heads_q = 4,
     .heads_k = 2,
     .seqlen_q = 3,
     .seqlen_k = 90,
     .mask = causal(),
     .used_k = {77, 90},
     .page_size = 7},
    {.name = "left_padding_and_entries",
     .batch = 2,
     .seqlen_q = 3,
     .seqlen_k = 90,
     .mask = causal(),
     .used_k = {77, 90},
     .left = {11, 70},
     .batch_index = {2, 0}},
    {.name = "dropout",
     .batch = 2,
     .heads_q = 2,
     .heads_k = 1,
     .seqlen_q = 90,
     .seqlen_k = 130,
     .mask = causal(),
     .dropout = 0.3f},
    {.name = "dropout_128", .seqlen_q = 20, .seqlen_k = 130, .d = 128, .dv = 128, .dropout = 0.5f},
    {.name = "dropout_window_256",
     .seqlen_q = 20,
     .seqlen_k = 130,
     .d = 200,
     .dv = 200,
     .mask = {.left = 40, .right = 3},
     .dropout = 0.5f},
    {.name = "splits", .seqlen_q = 20, .seqlen_k = 600, .num_splits = 4},
    {.name = "splits_of_a_window_with_sinks",
     .heads_q = 2,
     .seqlen_q = 140,
     .seqlen_k = 400,
     .mask = {.left = 130, .right = 0},
     .sink = true,
     .num_splits = 3},
    {.name = "more_splits_than_blocks",
     .batch = 4,
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 150,
     .seqlen_k = 300,
     .mask = causal(),
     .sink = true,
     .cu_q = {0, 5, 5, 150, 160},
     .cu_k = {0, 60, 70, 70, 300},
     .num_splits = 3},
    {.name = "splits_of_pages",
     .batch = 2,
     .heads_q = 8,
     .heads_k = 2,
     .seqlen_q = 3,
     .seqlen_k = 390,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .used_k = {377, 1},
     .page_size = 7,
     .num_splits = 5},
    {.name = "splits_of_dv_400",
     .seqlen_q = 10,
     .seqlen_k = 200,
     .dv = 399,
     .float_output = true,
     .num_splits = 2},
    {.name = "splits_with_dropout",
     .seqlen_q = 70,
     .seqlen_k = 330,
     .dropout = 0.3f,
     .num_splits = 2},
    {.name = "e4m3_cache_of_pages",
     .batch = 2,
     .heads_q = 8,
     .heads_k = 2,
     .seqlen_q = 3,
     .seqlen_k = 390,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .sink = true,
     .used_k = {377, 1},
     .page_size = 7,
     .num_splits = 5,
     .cache = DType::float8_e4m3},
    {.name = "e5m2_cache_of_odd_columns",
     .heads_q = 2,
     .seqlen_q = 40,
     .seqlen_k = 150,
     .d = 57,
     .dv = 61,
     .softcap = 1.5f,
     .pad = 3,
     .offset = 1,
     .cache = DType::float8_e5m2},
    {.name = "e4m3_cache_256",
     .batch = 3,
     .seqlen_q = 1,
     .seqlen_k = 100,
     .d = 256,
     .dv = 400,
     .pad = 16,
     .used_k = {0, 100, 33},
     .cache = DType::float8_e4m3},
    {.name = "e4m3_cache_of_five_and_one_columns",
     .heads_q = 2,
     .seqlen_q = 40,
     .seqlen_k = 150,
     .d = 5,
     .dv = 1,
     .cache = DType::float8_e4m3},
    {.name = "e4m3_values_of_five_columns",
     .batch = 2,
     .heads_q = 4,
     .heads_k = 2,
     .seqlen_q = 3,
     .seqlen_k = 150,
     .d = 64,
     .dv = 5,
     .cache = DType::float8_e4m3},
    {.name = "e4m3_values_of_one_column_in_fp32",
     .seqlen_q = 20,
     .seqlen_k = 300,
     .d = 128,
     .dv = 1,
     .float_output = true,
     .num_splits = 2,
     .cache = DType::float8_e4m3},
    {.name = "few_rows_256", .seqlen_q = 16, .seqlen_k = 100, .d = 256, .dv = 256},
    {.name = "few_rows_128_of_8_heads",
     .batch = 2,
     .heads_q = 8,
     .seqlen_q = 2,
     .seqlen_k = 100,
     .d = 128,
     .dv = 128,
     .mask = causal()},
};

// Copies in two stages, at once and between products, in one, by elements, and of a quantized
// cache.
const NumericCase kOfOrders[] = {
    {.name = "two_stages", .seqlen_q = 140, .seqlen_k = 200, .mask = causal()},
    {.name = "one_stage", .seqlen_q = 70, .seqlen_k = 150, .d = 256, .dv = 256},
    {.name = "two_stages_of_128_columns", .seqlen_q = 70, .seqlen_k = 190, .d = 128, .dv = 128},
    {.name = "elements", .seqlen_q = 20, .seqlen_k = 150, .d = 35, .dv = 33},
    {.name = "cache", .seqlen_q = 5, .seqlen_k = 150, .cache = DType::float8_e4m3},
};
class ForwardOrder : public testing::TestWithParam<NumericCase> {
 protected:
  static std::string problem() { return NumericRun(GetParam()).problem(); }
};
TEST_P(ForwardOrder, warps_may_run_in_any_order) {
  expect_right_in_any_order(problem);
}
TEST_P(ForwardOrder, copies_are_not_awaited) {
  if (GetParam().d % 2 != 0) {  // threads store elements themselves: there is nothing to wait for
    in_many_orders(machine::Fault::kNoCopyWait, 0, problem,
                   [](const std::string& said) { EXPECT_EQ(said, ""); });
  } else {
    expect_found_in_any_order(machine::Fault::kNoCopyWait, 0, problem);
  }
}
TEST_P(ForwardOrder, warps_do_not_wait_for_each_other) {
  expect_found_in_any_order(machine::Fault::kNoBlockBarrier, 0, problem);
}
INSTANTIATE_TEST_SUITE_P(forward, ForwardOrder, testing::ValuesIn(kOfOrders),
                         [](const auto& info) { return info.param.name; });

template <Element E, class Float8>
void expect_exact(bool is_e5m2) {
  for (int first = 0; first < 256; ++first) {  // beside a number, and one that is not finite
    const uint32_t four = uint32_t(first) | 0x38u << 8 | uint32_t(first) << 16 | 0xffu << 24;
    uint32_t pairs[2];
    Float8Bits<E>{is_e5m2}.widen_any(four, pairs[0], pairs[1]);
    for (int i = 0; i < 4; ++i) {
      const float expected = to_float(Float8{uint8_t(four >> (8 * i))});
      const float got = cuda::widened<E>(uint16_t(pairs[i / 2] >> (16 * (i % 2))));
      EXPECT_TRUE(got == expected || (got != got && expected != expected))
          << first << ", " << i << ": " << got << ", expected " << expected;
    }
  }
}

TEST(Dequantize, is_exact_in_either_element) {
  expect_exact<Element::kFp16, Float8E4M3>(false);
  expect_exact<Element::kFp16, Float8E5M2>(true);
  expect_exact<Element::kBf16, Float8E4M3>(false);
  expect_exact<Element::kBf16, Float8E5M2>(true);
}

INSTANTIATE_TEST_SUITE_P(forward, Numeric, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fa3::ampere
