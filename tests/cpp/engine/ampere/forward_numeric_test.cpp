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

// Sequences, heads and heads of keys, queries and keys, columns of keys and of values, mask.
const NumericCase kCases[] = {
    {"one_block", 1, 1, 1, 20, 40},
    {"several_blocks", 1, 2, 2, 140, 200},
    {"many_keys", 1, 1, 1, 20, 1100},
    {"three_blocks_of_128_columns", 1, 1, 1, 140, 190, 128, 128},
    {"causal_of_192_columns", 1, 2, 1, 140, 140, 192, 128, causal()},
    with({"one_stage_of_128_columns", 1, 1, 1, 140, 110, 128, 128, causal()},
         [](auto& c) { c.smem_of_sm = 100 << 10; }),
    with({"splits_of_128_columns", 2, 2, 1, 70, 400, 128, 128, causal()},
         [](auto& c) {
           c.used_k = {400, 200}, c.num_splits = 2;
         }),
    {"causal", 1, 1, 1, 150, 230, 64, 64, causal()},
    {"causal_rows_without_keys", 1, 1, 1, 150, 70, 64, 64, causal()},
    with({"fp16", 1, 1, 1, 40, 100}, [](auto& c) { c.dtype = DType::float16; }),
    {"columns_96", 1, 1, 1, 40, 100, 96, 96, causal()},
    {"columns_128", 1, 1, 1, 140, 150, 128, 128},
    with({"columns_128_of_an_a100", 1, 1, 1, 140, 150, 128, 128, causal()},
         [](auto& c) { c.smem_of_sm = 164 << 10; }),
    {"columns_192_128", 1, 1, 1, 70, 80, 192, 128},
    {"columns_256", 1, 1, 1, 70, 80, 256, 256, causal()},
    {"columns_64_200", 1, 1, 1, 10, 40, 64, 200},
    {"columns_16_8", 1, 1, 1, 10, 40, 16, 8},
    with({"tails_by_16_bytes", 1, 1, 1, 10, 70, 36, 44}, [](auto& c) { c.pad = 4; }),
    {"by_8_bytes", 1, 1, 1, 10, 70, 36, 44},
    with({"by_4_bytes", 1, 1, 1, 10, 70}, [](auto& c) { c.offset = 2; }),
    {"by_elements", 1, 2, 2, 10, 70, 35, 33},
    with({"by_elements_float_output", 1, 1, 1, 10, 70, 35, 33},
         [](auto& c) { c.float_output = true, c.offset = 1; }),
    with({"float_output", 1, 1, 1, 10, 70}, [](auto& c) { c.float_output = true; }),
    {"dv_512", 1, 1, 1, 10, 40, 64, 400},
    {"window", 1, 1, 1, 140, 250, 64, 64, {.left = 30, .right = 20}},
    {"window_beside_the_diagonal", 1, 1, 1, 70, 70, 64, 64, {.left = 60, .right = -20}},
    {"chunks", 1, 1, 1, 140, 180, 64, 64, {.right = 0, .chunk = 48}},
    with({"softcap", 1, 1, 1, 20, 150}, [](auto& c) { c.softcap = 1.5f; }),
    with({"softcap_of_large", 1, 1, 1, 20, 150}, [](auto& c) { c.softcap = 30, c.deviation = 30; }),
    with({"sink", 1, 2, 2, 30, 20, 64, 64, causal()}, [](auto& c) { c.sink = true; }),
    {"packed_heads", 1, 8, 2, 9, 80, 64, 64, causal()},
    {"many_packed_heads", 1, 48, 1, 1, 80, 64, 64, causal()},
    with({"guard_recomputes", 1, 1, 1, 20, 300},
         [](auto& c) { c.deviation = 4, c.loud_key = 10, c.loudness = 1; }),
    with({"guard_rescales", 1, 1, 1, 20, 300},
         [](auto& c) { c.deviation = 30, c.loud_key = 10, c.loudness = 4; }),
    with({"rising", 1, 1, 1, 20, 600}, [](auto& c) { c.deviation = 40; }),
    with({"packed", 4, 2, 2, 150, 90, 64, 64, causal()},
         [](auto& c) {
           c.cu_q = {0, 5, 5, 150, 160}, c.cu_k = {0, 60, 70, 70, 90};
         }),
    with({"used", 3, 1, 1, 20, 90},
         [](auto& c) {
           c.used_q = {20, 0, 7}, c.used_k = {0, 90, 65};
         }),
    with({"pages", 2, 4, 2, 3, 90, 64, 64, causal()},
         [](auto& c) {
           c.used_k = {77, 90}, c.page_size = 7;
         }),
    with({"left_padding_and_entries", 2, 1, 1, 3, 90, 64, 64, causal()},
         [](auto& c) {
           c.used_k = {77, 90}, c.left = {11, 70}, c.batch_index = {2, 0};
         }),
    with({"dropout", 2, 2, 1, 90, 130, 64, 64, causal()}, [](auto& c) { c.dropout = 0.3f; }),
    with({"dropout_128", 1, 1, 1, 20, 130, 128, 128}, [](auto& c) { c.dropout = 0.5f; }),
    with({"dropout_window_256", 1, 1, 1, 20, 130, 200, 200, {.left = 40, .right = 3}},
         [](auto& c) { c.dropout = 0.5f; }),
    with({"splits", 1, 1, 1, 20, 600}, [](auto& c) { c.num_splits = 4; }),
    with({"splits_of_a_window_with_sinks", 1, 2, 1, 140, 400, 64, 64, {.left = 130, .right = 0}},
         [](auto& c) { c.sink = true, c.num_splits = 3; }),
    with({"more_splits_than_blocks", 4, 2, 2, 150, 300, 64, 64, causal()},
         [](auto& c) {
           c.sink = true, c.cu_q = {0, 5, 5, 150, 160}, c.cu_k = {0, 60, 70, 70, 300},
           c.num_splits = 3;
         }),
    with({"splits_of_pages", 2, 8, 2, 3, 390, 128, 128, causal()},
         [](auto& c) {
           c.used_k = {377, 1}, c.page_size = 7, c.num_splits = 5;
         }),
    with({"splits_of_dv_400", 1, 1, 1, 10, 200, 64, 399},
         [](auto& c) { c.float_output = true, c.num_splits = 2; }),
    with({"splits_with_dropout", 1, 1, 1, 70, 330},
         [](auto& c) { c.dropout = 0.3f, c.num_splits = 2; }),
    with({"e4m3_cache_of_pages", 2, 8, 2, 3, 390, 128, 128, causal()},
         [](auto& c) {
           c.sink = true, c.used_k = {377, 1}, c.page_size = 7, c.num_splits = 5,
           c.cache = DType::float8_e4m3;
         }),
    with({"e5m2_cache_of_odd_columns", 1, 2, 1, 40, 150, 57, 61},
         [](auto& c) { c.softcap = 1.5f, c.pad = 3, c.offset = 1, c.cache = DType::float8_e5m2; }),
    with({"e4m3_cache_256", 3, 1, 1, 1, 100, 256, 400},
         [](auto& c) {
           c.pad = 16, c.used_k = {0, 100, 33}, c.cache = DType::float8_e4m3;
         }),
    with({"e4m3_cache_of_five_and_one_columns", 1, 2, 1, 40, 150, 5, 1},
         [](auto& c) { c.cache = DType::float8_e4m3; }),
    with({"e4m3_values_of_five_columns", 2, 4, 2, 3, 150, 64, 5},
         [](auto& c) { c.cache = DType::float8_e4m3; }),
    with({"e4m3_values_of_one_column_in_fp32", 1, 1, 1, 20, 300, 128, 1},
         [](auto& c) { c.float_output = true, c.num_splits = 2, c.cache = DType::float8_e4m3; }),
    {"few_rows_256", 1, 1, 1, 16, 100, 256, 256},
    {"few_rows_128_of_8_heads", 2, 8, 1, 2, 100, 128, 128, causal()},
};

// A gate, the largest score, or both: in whole tiles, in splits, beside other features.
constexpr auto kEachRow = cuda::Gate::kRows, kEachColumn = cuda::Gate::kColumns;
const NumericCase kOutputCases[] = {
    with({"gate", 1, 2, 2, 140, 200, 64, 64, causal()},
         [](auto& c) { c.gate = kEachColumn, c.max_logit = true; }),
    with({"max_logit", 1, 1, 1, 20, 300},
         [](auto& c) { c.deviation = 30, c.loud_key = 10, c.loudness = 4, c.max_logit = true; }),
    with(
        {"max_logit_of_splits_with_sinks", 1, 2, 1, 140, 400, 64, 64, {.left = 130, .right = 0}},
        [](auto& c) { c.sink = true, c.num_splits = 3, c.max_logit = true, c.gate = kEachColumn; }),
    with({"gate_at_odd_addresses_and_softcap", 1, 1, 1, 140, 150, 128, 128, causal()},
         [](auto& c) {
           c.gate = kEachColumn, c.gate_dtype = DType::float16, c.pad = 3, c.offset = 1;
           c.softcap = 1.5f, c.max_logit = true;
         }),
    with({"gate_in_float32_of_256_columns", 1, 1, 1, 70, 80, 256, 256},
         [](auto& c) { c.gate = kEachColumn, c.gate_dtype = DType::float32; }),
    with({"gate_of_rows_with_dropout", 2, 2, 1, 90, 130, 64, 64, causal()},
         [](auto& c) {
           c.gate = kEachRow, c.gate_dtype = DType::float32, c.dropout = 0.3f;
           c.max_logit = true;
         }),
    with({"gate_of_packed_heads_and_lengths", 4, 8, 2, 9, 90, 64, 60, causal()},
         [](auto& c) {
           c.gate = kEachColumn, c.max_logit = true;
           c.cu_q = {0, 5, 5, 14, 16}, c.cu_k = {0, 60, 70, 70, 90};
         }),
    with({"gate_over_an_e4m3_cache", 2, 8, 2, 3, 90, 64, 64, causal()},
         [](auto& c) {
           c.gate = kEachRow, c.max_logit = true, c.used_k = {77, 1}, c.page_size = 7;
           c.cache = DType::float8_e4m3;
         }),
    with({"gate_under_a_block_mask", 1, 1, 1, 300, 500},
         [](auto& c) { c.gate = kEachColumn, c.max_logit = true, c.block_mask = true; }),
};

// Under block masks: every kernel, each kind of call.
const NumericCase kMaskedCases[] = {
    with({"lists", 1, 1, 1, 300, 500}, [](auto& c) { c.block_mask = true; }),
    with({"of_heads_and_sequences", 2, 4, 2, 140, 400, 64, 64, causal()},
         [](auto& c) { c.block_mask = true, c.map_by_sequence = true, c.map_by_head = true; }),
    with({"window_softcap_sink_128", 1, 1, 1, 150, 600, 128, 128, {.left = 200, .right = 3}},
         [](auto& c) { c.softcap = 2, c.sink = true, c.block_mask = true; }),
    with({"columns_128_of_small_memory", 1, 1, 1, 140, 300, 128, 128},
         [](auto& c) { c.smem_of_sm = 100 << 10, c.block_mask = true; }),
    with({"chunks_200", 1, 1, 1, 140, 300, 200, 200, {.right = 0, .chunk = 48}},
         [](auto& c) { c.block_mask = true; }),
    with({"dropout", 1, 2, 1, 140, 260, 64, 64, causal()},
         [](auto& c) { c.dropout = 0.3f, c.block_mask = true; }),
    with({"dropout_256", 1, 1, 1, 20, 260, 256, 256},
         [](auto& c) { c.dropout = 0.3f, c.block_mask = true; }),
    with({"packed", 4, 2, 1, 150, 290, 64, 64, causal()},
         [](auto& c) {
           c.cu_q = {0, 5, 5, 150, 160}, c.cu_k = {0, 60, 70, 70, 290}, c.block_mask = true,
           c.map_by_sequence = true;
         }),
    with({"tree_of_drafts_in_pages", 3, 8, 2, 5, 390, 128, 128},
         [](auto& c) {
           c.used_k = {377, 140, 1}, c.page_size = 16, c.num_splits = 3, c.block_mask = true,
           c.map_by_sequence = true;
         }),
    with({"few_rows_of_heads_256", 2, 4, 1, 7, 600, 256, 256},
         [](auto& c) { c.block_mask = true, c.map_by_head = true; }),
    with({"e4m3_cache", 2, 8, 2, 3, 390},
         [](auto& c) {
           c.used_k = {377, 290}, c.page_size = 7, c.num_splits = 2, c.cache = DType::float8_e4m3,
           c.block_mask = true;
         }),
    with({"e5m2_cache_256", 1, 1, 1, 3, 390, 256, 256},
         [](auto& c) { c.cache = DType::float8_e5m2, c.block_mask = true; }),
    with({"guard_fires", 1, 1, 1, 20, 900}, [](auto& c) { c.deviation = 40, c.block_mask = true; }),
};

// Copies in two stages, at once and between products, in one, by elements, and of a quantized
// cache.
const NumericCase kOfOrders[] = {
    {"two_stages", 1, 1, 1, 140, 200, 64, 64, causal()},
    {"one_stage", 1, 1, 1, 70, 150, 256, 256},
    {"two_stages_of_128_columns", 1, 1, 1, 70, 190, 128, 128},
    {"elements", 1, 1, 1, 20, 150, 35, 33},
    with({"cache", 1, 1, 1, 5, 150}, [](auto& c) { c.cache = DType::float8_e4m3; }),
    with({"lists", 1, 1, 1, 140, 500}, [](auto& c) { c.block_mask = true; }),
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
INSTANTIATE_TEST_SUITE_P(outputs, Numeric, testing::ValuesIn(kOutputCases),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(block_mask, Numeric, testing::ValuesIn(kMaskedCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fa3::ampere
