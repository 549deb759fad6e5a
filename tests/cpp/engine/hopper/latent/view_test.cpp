// SPDX-License-Identifier: Apache-2.0
// A forward call with V a view of latent K is the latent call of the same tensors, or is refused
// with the first thing that latent kernels lack.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "engine/hopper/latent/plan_latent.h"
#include "engine/hopper/latent_view.h"

namespace fa3::hopper {
namespace {

alignas(16) std::byte memory[4096];

// A decoding step: pages of 64 rows that are 600 channels apart.
Problem decoding() {
  Problem p;
  p.batch = 2;
  p.heads_q = 16, p.heads_k = 1;
  p.head_dim = 576, p.head_dim_v = 512;
  p.dtype = p.kv_dtype = DType::bfloat16;
  p.lengths_q = {.max = 3, .total = 6};
  p.lengths_k = {.max = 640, .total = 1280, .varlen = true};
  p.mask.right = 0;
  p.q = {.data = memory,
         .dtype = p.dtype,
         .batch_stride = 3 * 9216,
         .row_stride = 9216,
         .head_stride = 576};
  p.k = {.data = memory, .dtype = p.dtype, .batch_stride = 64 * 600, .row_stride = 600};
  p.v = p.k;
  p.o.dtype = p.dtype;
  p.key_places = {.page_size = 64, .pages = 30, .elsewhere = true};
  p.scale = 0.25f;
  p.device = FA3_CUDA;
  return p;
}

TEST(LatentView, is_the_latent_call_of_the_same_tensors) {
  MlaProblem latent;
  ASSERT_TRUE(latent_view(decoding(), &latent).ok());
  const LatentCache& cache = latent.keys.cache;
  EXPECT_EQ(cache.pages, 30);
  EXPECT_EQ(cache.page_size, 64);
  EXPECT_EQ(cache.latent.at(1, 2), memory + 64 * 1200 + 2 * 1200);
  EXPECT_EQ(cache.rope.at(1, 2), memory + 64 * 1200 + 2 * 1200 + 1024);
  EXPECT_EQ(cache.channels(), 576);
  EXPECT_TRUE(latent.causal);
  EXPECT_EQ(latent.scale, 0.25f);
  EXPECT_EQ(latent.empty_lse, -INFINITY);
  LatentPlan plan;
  EXPECT_TRUE(plan_latent(latent, 132, &plan).ok());
  EXPECT_GT(plan.ctas, 0);
}

TEST(LatentView, without_rope_has_latent_channels_alone) {
  Problem p = decoding();
  p.head_dim = 512;
  p.mask = {};
  MlaProblem latent;
  ASSERT_TRUE(has_latent_dims(p) && latent_view(p, &latent).ok());
  EXPECT_EQ(latent.keys.cache.channels(), 512);
  EXPECT_FALSE(latent.causal);
}

TEST(LatentView, refuses_what_latent_kernels_lack_by_name) {
  const std::tuple<const char*, void (*)(Problem&)> refused[] = {
      {"v: ", [](Problem& p) { p.v.data = memory + 16; }},
      {"v: ", [](Problem& p) { p.v.row_stride = 512; }},
      {"v: ", [](Problem& p) { p.v.batch_stride = 64; }},
      {"fa3.mla.attention", [](Problem& p) { p.kv_dtype = DType::float8_e4m3; }},
      {"page_table: ", [](Problem& p) { p.key_places = {}; }},
      {"16 over 2", [](Problem& p) { p.heads_k = 2; }},
      {"192 over 1", [](Problem& p) { p.heads_q = 192; }},
      {"window: ", [](Problem& p) { p.mask.left = 5; }},
      {"window: ", [](Problem& p) { p.mask.right = 5; }},
      {"attention_chunk: ", [](Problem& p) { p.mask.chunk = 5; }},
      {"softcap: ", [](Problem& p) { p.softcap = 5; }},
      {"block_mask: ", [](Problem& p) { p.block_mask.on = true; }},
      {"dropout_p: ", [](Problem& p) { p.dropout.threshold = 5; }},
      {"gate: ", [](Problem& p) { p.gate.on = true; }},
      {"max_logit: ", [](Problem& p) { p.max_logit.on = true; }},
      {"sm_margin: ", [](Problem& p) { p.sm_margin = 8; }},
      {"batch_index: ", [](Problem& p) { p.key_places.indexed = true; }},
      {"left_padding: ", [](Problem& p) { p.lengths_k.padded_left = true; }},
      {"seqused_q: ", [](Problem& p) { p.lengths_q.varlen = true; }},
  };
  for (const auto& [words, change] : refused) {
    Problem p = decoding();
    change(p);
    MlaProblem latent;
    const Status status = latent_view(p, &latent);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << words << status.message();
  }
}

TEST(LatentView, takes_no_other_head_dims) {
  for (const auto& [dim, dim_v] : {std::pair{576, 256}, {512, 256}, {256, 256}, {128, 512}}) {
    Problem p = decoding();
    p.head_dim = dim, p.head_dim_v = dim_v;
    EXPECT_FALSE(has_latent_dims(p)) << dim << " " << dim_v;
  }
}

}  // namespace
}  // namespace fa3::hopper
