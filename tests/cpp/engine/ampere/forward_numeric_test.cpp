// SPDX-License-Identifier: Apache-2.0
//
// The forward kernels' sources with numbers, on the host: every feature against the textbook.
#include <gtest/gtest.h>

#include "numeric/forward_run.h"

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
    {.name = "causal", .seqlen_q = 150, .seqlen_k = 230, .mask = causal()},
    {.name = "causal_rows_without_keys", .seqlen_q = 150, .seqlen_k = 70, .mask = causal()},
    {.name = "fp16", .seqlen_q = 40, .seqlen_k = 100, .dtype = DType::float16},
    {.name = "columns_96", .seqlen_q = 40, .seqlen_k = 100, .d = 96, .dv = 96, .mask = causal()},
    {.name = "columns_128", .seqlen_q = 140, .seqlen_k = 150, .d = 128, .dv = 128},
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
};

INSTANTIATE_TEST_SUITE_P(forward, Numeric, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fa3::ampere
