// SPDX-License-Identifier: Apache-2.0
// What the forward's kernels do is accepted, the rest refused with its reason.
#include <gtest/gtest.h>

#include <tuple>

#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

TEST(CheckForward, what_the_kernels_do_is_accepted) {
  Problem p = plain();
  EXPECT_TRUE(check_forward(p).ok());
  p.mask.right = 0;  // causal
  EXPECT_TRUE(check_forward(p).ok());
  p.dtype = p.o.dtype = DType::float16;
  p.heads_k = 1;
  p.head_dim = 72;
  p.head_dim_v = 40;
  p.lengths_q.max = 1;
  p.lengths_k.max = 0;
  EXPECT_TRUE(check_forward(p).ok());
}

TEST(CheckForward, what_they_do_not_is_refused_with_its_reason) {
  const auto expect_refused = [](const char* reason, auto change) {
    Problem p = plain();
    change(p);
    const Status status = check_forward(p);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << reason;
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  };
  expect_refused("float32", [](Problem& p) { p.dtype = DType::float32; });
  expect_refused("no kernel", [](Problem& p) { p.head_dim = 512; });
  expect_refused("2^30", [](Problem& p) { p.lengths_k.max = int64_t{1} << 31; });
}

TEST(CheckForward, beside_a_block_mask_what_its_kernels_do_not_know_is_refused) {
  const auto refusal_after = [](auto change) {
    Problem p = plain();
    p.block_mask.on = true;
    change(p);
    return check_forward(p).message();
  };
  EXPECT_EQ(refusal_after([](Problem&) {}), "");
  EXPECT_EQ(refusal_after([](Problem& p) { p.head_dim = 40, p.heads_k = 1; }), "");
  EXPECT_EQ(refusal_after([](Problem& p) { p.mask.right = 0; }), "");
  EXPECT_EQ(refusal_after([](Problem& p) { p.mask.left = 5; }), "");
  EXPECT_EQ(refusal_after([](Problem& p) { p.lengths_q.varlen = p.lengths_k.varlen = true; }), "");
  const std::tuple<const char*, void (*)(Problem&)> refused[] = {
      {"chunks", [](Problem& p) { p.mask.chunk = 5; }},
      {"page_table", [](Problem& p) { p.key_places.elsewhere = true; }},
      {"left_padding", [](Problem& p) { p.lengths_k.padded_left = true; }},
      {"softcap", [](Problem& p) { p.softcap = 5; }},
      {"sink", [](Problem& p) { p.has_sink = true; }},
      {"dropout", [](Problem& p) { p.dropout.threshold = 5; }},
      {"float8", [](Problem& p) { p.kv_dtype = DType::float8_e4m3; }},
      {"an output of float32", [](Problem& p) { p.o.dtype = DType::float32; }},
      {"multiples of 8", [](Problem& p) { p.head_dim = 100; }},
      {"the largest have 128", [](Problem& p) { p.head_dim_v = 136; }}};
  for (const auto& [reason, change] : refused) {
    EXPECT_NE(refusal_after(change).find(reason), std::string::npos) << refusal_after(change);
  }
}

// The kinds of a call stand before what no kernel for them offers; of what every need has a kernel
// for, the columns are too many.
TEST(CheckForward, a_refusal_names_the_first_need_that_no_kernel_offers) {
  const auto refusal_after = [](auto change) {
    Problem p = plain();
    change(p);
    return check_forward(p).message();
  };
  EXPECT_EQ(refusal_after([](Problem& p) { p.head_dim = 512; }),
            "no kernel for head dims 512 and 128; the largest have 256");
  EXPECT_EQ(refusal_after([](Problem& p) { p.dropout.threshold = 5, p.head_dim = 512; }),
            "no kernel for dropout and head dims 512 and 128; the largest have 256");
  EXPECT_EQ(refusal_after([](Problem& p) { p.dropout.threshold = 5, p.head_dim = 250; }),
            "no kernel for dropout and head dims 250 and 128; the largest have 128");
  EXPECT_EQ(
      refusal_after([](Problem& p) { p.kv_dtype = DType::float8_e4m3, p.dropout.threshold = 5; }),
      "float8 keys and values beside dropout");
  EXPECT_EQ(refusal_after([](Problem& p) { p.block_mask.on = true, p.mask.chunk = 5; }),
            "block_mask beside chunks; put these into the map and its bits");
}

TEST(CheckForward, takes_quantized_caches_whose_scales_belong_to_sequences) {
  Problem p = plain();
  p.kv_dtype = DType::float8_e4m3;
  EXPECT_TRUE(check_forward(p).ok());
  const float scale = 1, mean = 0;
  p.k_quantization.descale = {.data = &scale, .scaling = Scaling::per_head};
  EXPECT_TRUE(check_forward(p).ok());
  Problem blocks = p, centred = p, narrow = p;
  blocks.k_quantization.descale.scaling = Scaling::per_block;
  EXPECT_NE(check_forward(blocks).message().find("k_descale of 64 rows"), std::string::npos);
  centred.v_quantization.mean.data = &mean;
  EXPECT_NE(check_forward(centred).message().find("v_mean"), std::string::npos);
  narrow.head_dim = 72;
  EXPECT_NE(check_forward(narrow).message().find("multiples of 16"), std::string::npos);
}

TEST(CheckForward, takes_caches_of_e5m2_and_tells_the_kernel) {
  Problem p = plain();
  for (const DType dtype : {DType::float8_e4m3, DType::float8_e5m2}) {
    p.kv_dtype = dtype;
    EXPECT_TRUE(check_forward(p).ok()) << name_of(dtype);
    EXPECT_TRUE(chosen_kernel(p).dequantizes());
    EXPECT_EQ(call_of(p).cache_is_e5m2, dtype == DType::float8_e5m2);
  }
  p.o.dtype = DType::float32;
  EXPECT_NE(check_forward(p).message().find("float8 keys"), std::string::npos);
}

TEST(TensorMap, a_tensor_without_elements_needs_no_strides) {
  alignas(16) static char memory[64];
  const Operand without_strides{.data = memory, .dtype = DType::bfloat16};
  EXPECT_EQ(tensor_map_obstacle(span_of(without_strides, 3, 0, 4, 64)), nullptr);
  EXPECT_NE(tensor_map_obstacle(span_of(without_strides, 3, 5, 4, 64)), nullptr);
}

TEST(TensorMap, obstacles_are_named) {
  alignas(16) static char memory[64];
  TensorSpan t{memory, 2, 10, 3, 64, 1920, 192, 64};
  EXPECT_EQ(tensor_map_obstacle(t), nullptr);
  t.data = memory + 2;
  EXPECT_NE(tensor_map_obstacle(t), nullptr);
  t.data = memory;
  t.row_stride = 100;  // 200 bytes
  EXPECT_NE(tensor_map_obstacle(t), nullptr);
  t.rows = 1;  // then its stride is never used
  EXPECT_EQ(tensor_map_obstacle(t), nullptr);
}

}  // namespace
}  // namespace fa3::hopper
