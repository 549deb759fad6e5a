// SPDX-License-Identifier: Apache-2.0
// Plans of FP8 calls: what is refused, who transposes V and when, and what a V that is given
// transposed spares.
#include <gtest/gtest.h>

#include <tuple>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/plan_forward.h"
#include "engine/hopper/plan/select/choose_split.h"

namespace fa3::hopper {
namespace {

TEST(CheckE4m3, what_the_kernels_do_is_accepted_and_the_rest_refused_with_its_reason) {
  Problem e4m3 = plain();
  e4m3.dtype = e4m3.kv_dtype = DType::float8_e4m3;
  EXPECT_TRUE(check_forward(e4m3).ok());
  const auto expect_refused = [&](const char* reason, auto change) {
    Problem p = e4m3;
    change(p);
    const Status status = check_forward(p);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << reason;
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  };
  fa3_score_function score{};
  score.text = "return score;";
  expect_refused("score function", [&](Problem& p) { p.score = &score; });
  expect_refused("output of float32", [](Problem& p) { p.o.dtype = DType::float32; });
  const float mean = 0;
  const auto centred = [&](auto change) {
    return [&mean, change](Problem& p) {
      p.k_quantization.mean.data = &mean;
      change(p);
    };
  };
  expect_refused("k_mean beside a softcap", centred([](Problem& p) { p.softcap = 1; }));
  expect_refused("k_mean beside a softcap", centred([](Problem& p) { p.has_sink = true; }));
  expect_refused("k_mean beside max_logit", centred([](Problem& p) { p.max_logit.on = true; }));
  const auto expect_accepted = [&](const char* what, auto change) {
    Problem p = e4m3;
    change(p);
    EXPECT_TRUE(check_forward(p).ok()) << what << ": " << check_forward(p).message();
  };
  expect_accepted("softcap", [](Problem& p) { p.softcap = 1; });
  expect_accepted("k_mean", centred([](Problem& p) { p.lengths_k.varlen = true; }));
  expect_accepted("sink", [](Problem& p) { p.has_sink = true; });
  expect_accepted("chunks", [](Problem& p) { p.mask.chunk = 3; });
  expect_accepted("window", [](Problem& p) { p.mask.left = 3; });
  expect_accepted("window beside the diagonal", [](Problem& p) { p.mask.right = -1; });
  expect_accepted("lengths", [](Problem& p) { p.lengths_k.varlen = true; });
  expect_accepted("mean in a window", centred([](Problem& p) { p.mask.left = 3; }));
  expect_refused("multiples of 16", [](Problem& p) { p.head_dim = 72; });
  expect_refused("the largest have 256", [](Problem& p) { p.head_dim = 512; });
}

constexpr Kernel kDense = row_named("e4m3 d128/128 128x128").kernel,
                 kGeneral = row_named("e4m3 d128/128 128x128 varlen capped").kernel,
                 kTransposer = row_named("e4m3 d128/128 128x128 rows of V").kernel,
                 kWide = row_named("e4m3 d256/256 128x128").kernel;

E4m3Plan planned_e4m3(Problem p, const Kernel& dense = kDense) {
  p.dtype = DType::float8_e4m3;
  const Kernel& c = p.lengths_k.varlen ? kGeneral : dense;
  const ForwardCall call = call_of(p);
  return plan_e4m3_launch({c, nullptr, 1024}, request_of(p, kSms),
                          whole_tiles(c, call, choose_pack(c, call), kSms));
}

// The list of tiles is made by a kernel between the two, which a kernel that starts early would
// not wait for.
TEST(PlanE4m3, chains_the_kernel_to_the_one_that_transposes_values_unless_another_is_between) {
  Problem p = plain();
  EXPECT_TRUE(planned_e4m3(p).forward.pdl);
  p.lengths_k.varlen = true;
  const E4m3Plan varlen = planned_e4m3(p);
  EXPECT_EQ(varlen.forward.tiling.scheduler, Scheduler::kVarlenMetadata);
  EXPECT_FALSE(varlen.forward.pdl);
}

// A dense call of 16k tokens of 16 heads, whose tiles have 128 rows.
Problem of_16k_tokens(int64_t keys) {
  Problem p = plain();
  p.batch = 16384 / keys;
  p.heads_q = p.heads_k = 16;
  p.lengths_q.max = p.lengths_k.max = keys;
  p.v = {.dtype = DType::float8_e4m3,
         .batch_stride = keys * 16 * 128,
         .row_stride = 16 * 128,
         .head_stride = 128};
  return p;
}

TEST(PlanE4m3, transposes_all_heads_of_the_first_tiles_before_them_and_the_others_ahead_of_theirs) {
  for (const int64_t keys : {512, 1024, 4096}) {
    for (const int64_t right : {int64_t{0}, MaskRule{}.right}) {
      Problem p = of_16k_tokens(keys);
      p.mask.right = right;
      const E4m3Plan plan = planned_e4m3(p);
      const int64_t tiles_of_head = keys / 128, heads = 16384 / keys * 16;
      EXPECT_EQ(plan.order.heads, heads);
      EXPECT_EQ(plan.order.parts_of_head, tiles_of_head);
      EXPECT_EQ(plan.order.first_heads, (kSms + tiles_of_head - 1) / tiles_of_head) << keys;
      EXPECT_GT(plan.order.late_ctas, 0);
      EXPECT_LT(plan.order.late_ctas, kSms / 4);
      EXPECT_EQ(plan.forward.tiling.scheduler, Scheduler::kDynamicPersistent)
          << "late CTAs begin later";
      EXPECT_GE(plan.forward.workspace.tile_counter, 0);
      EXPECT_GE(plan.forward_workspace - plan.parts_done, heads * int64_t{sizeof(int)});
    }
  }
}

TEST(PlanE4m3, transposes_all_heads_before_one_wave_of_tiles_or_tiles_of_a_list) {
  Problem small = of_16k_tokens(1024), varlen = of_16k_tokens(1024), no_keys = varlen;
  Problem unaligned = varlen;
  small.batch = 1;
  varlen.lengths_k.varlen = true;
  no_keys.lengths_k.max = 0;
  unaligned.v.data = reinterpret_cast<void*>(uintptr_t{4});
  for (const Problem& p : {small, varlen, no_keys, unaligned}) {
    const E4m3Plan plan = planned_e4m3(p);
    EXPECT_EQ(plan.order.first_heads, p.batch * p.heads_k);
    EXPECT_EQ(plan.order.late_ctas, 0);
    EXPECT_FALSE(plan.order.goes_on_late());
    EXPECT_EQ(plan.parts_done_of_head, 0);
  }
  EXPECT_EQ(planned_e4m3(small).forward.tiling.scheduler, Scheduler::kStaticPersistent);
}

int late_ctas(const Problem& p, const Kernel& kernel = kDense) {
  return planned_e4m3(p, kernel).order.late_ctas;
}

// Tiles that many rows share are long done with a head when the next one must be there.
TEST(PlanE4m3, fewer_sms_transpose_ahead_of_tiles_the_more_rows_see_a_key) {
  for (const Kernel& kernel : {kDense, kWide}) {
    Problem causal = of_16k_tokens(1024), shared = of_16k_tokens(512);
    causal.mask.right = 0;
    shared.heads_k = 8;
    EXPECT_GT(late_ctas(of_16k_tokens(512), kernel), late_ctas(of_16k_tokens(1024), kernel));
    EXPECT_EQ(late_ctas(causal, kernel), late_ctas(of_16k_tokens(512), kernel));
    EXPECT_EQ(late_ctas(shared, kernel), late_ctas(of_16k_tokens(1024), kernel));
    EXPECT_EQ(late_ctas(of_16k_tokens(4096), kernel), kSms / 16);
    causal.lengths_q.max = 512;  // of 1024 keys: the first half is seen by all
    causal.heads_k = 8;
    EXPECT_EQ(late_ctas(causal, kernel),
              kSms * (kernel.shape.head_dim == 256 ? 80 : 52) / (2 * 384));
  }
}

TEST(PlanE4m3, transposes_beforehand_where_a_sixth_of_the_sms_would_not_keep_ahead) {
  Problem few = of_16k_tokens(512), enough = of_16k_tokens(1024);
  few.mask.right = enough.mask.right = 0;
  EXPECT_EQ(late_ctas(few), kSms / 8);
  EXPECT_FALSE(planned_e4m3(few, kWide).order.goes_on_late());
  EXPECT_TRUE(planned_e4m3(enough, kWide).order.goes_on_late());
  few.heads_k = 4;
  EXPECT_TRUE(planned_e4m3(few, kWide).order.goes_on_late());
}

TEST(PlanE4m3, shares_a_head_among_the_tiles_of_its_queries) {
  Problem p = of_16k_tokens(512);
  p.heads_k = 4;
  EXPECT_EQ(planned_e4m3(p).order.first_heads, (kSms + 15) / 16);
}

TEST(PlanE4m3, pads_keys_by_a_block_where_a_kernel_may_look_behind_the_last_one) {
  Problem p = plain();
  for (const auto& [keys, padded, varlen] :
       {std::tuple(1024, 1024, 1152), {1023, 1024, 1024}, {1, 128, 128}, {0, 128, 128}}) {
    p.lengths_k = {.max = keys};
    EXPECT_EQ(planned_e4m3(p).padded_keys, padded) << keys;
    p.lengths_k.varlen = true;
    EXPECT_EQ(planned_e4m3(p).padded_keys, varlen) << keys;
  }
}

// As it lies: nothing goes before the tiles but scales.
TEST(PlanE4m3, a_kernel_that_transposes_v_itself_reads_it_in_rows) {
  Problem p = of_16k_tokens(512);
  const E4m3Plan plan = planned_e4m3(p, kTransposer);
  EXPECT_TRUE(plan.transposes_in_kernel());
  EXPECT_FALSE(plan.order.goes_on_late());
  EXPECT_EQ(plan.parts_done_of_head, 0);
  EXPECT_TRUE(plan.forward.pdl);
  const TensorSpan& v = plan.forward.call.v;
  EXPECT_EQ(v.rows, 512);
  EXPECT_EQ(v.columns, 128);
  EXPECT_EQ(v.row_stride, 16 * 128);
  EXPECT_LT(plan.workspace_bytes, 1 << 20);
}

// A kernel that transposes V does so again for each tile of rows.
TEST(PlanE4m3, a_kernel_transposes_v_itself_where_few_rows_see_a_key) {
  const auto chooses_it = [](int64_t keys, bool causal, int64_t head_dim, auto change) {
    Problem p = of_16k_tokens(keys);
    p.dtype = p.kv_dtype = DType::float8_e4m3;
    p.head_dim = p.head_dim_v = head_dim;
    if (causal) p.mask.right = 0;
    change(p);
    const Kernel& c = chosen_kernel(p);
    EXPECT_GE(c.shape.head_dim, head_dim);
    return c.transposes_v();
  };
  const auto as_it_is = [](Problem&) {};
  EXPECT_TRUE(chooses_it(512, true, 128, as_it_is));
  EXPECT_TRUE(chooses_it(1024, true, 128, as_it_is));
  EXPECT_TRUE(chooses_it(512, true, 256, as_it_is));
  EXPECT_TRUE(chooses_it(1024, true, 256, as_it_is));
  EXPECT_TRUE(chooses_it(512, false, 256, as_it_is));
  EXPECT_FALSE(chooses_it(512, false, 128, as_it_is)) << "as fast ahead of the tiles";
  EXPECT_FALSE(chooses_it(1024, false, 128, as_it_is));
  EXPECT_FALSE(chooses_it(1024, false, 256, as_it_is));
  EXPECT_FALSE(chooses_it(2048, true, 256, as_it_is));
  EXPECT_FALSE(chooses_it(512, true, 64, as_it_is)) << "no such kernel";
  EXPECT_FALSE(chooses_it(512, true, 192, as_it_is)) << "no such kernel";
  EXPECT_FALSE(chooses_it(512, true, 256, [](Problem& p) { p.heads_k = 4; }));
  EXPECT_FALSE(chooses_it(512, true, 256, [](Problem& p) { p.v_transposed.on = true; }));
  EXPECT_FALSE(chooses_it(512, true, 256, [](Problem& p) { p.v.row_stride += 4; }));
  EXPECT_FALSE(chooses_it(512, true, 256, [](Problem& p) { p.lengths_k.varlen = true; }));
  EXPECT_FALSE(chooses_it(512, true, 256, [](Problem& p) { p.lengths_k.max = 0; }));
}

// Calls with V given transposed: 16k tokens of 16 heads, channels side by side.
Problem transposed_16k_tokens(int64_t keys) {
  Problem p = of_16k_tokens(keys);
  p.v.batch_stride = keys * 16 * 128;
  p.v.row_stride = 1;
  p.v.head_stride = keys * 128;
  p.v_transposed = {.on = true, .channel_stride = keys};
  return p;
}

TEST(PlanE4m3, a_transposed_v_is_what_the_kernel_reads_and_takes_no_workspace) {
  for (const int64_t keys : {512, 1024, 4096, 16384}) {
    Problem p = transposed_16k_tokens(keys);
    const E4m3Plan plan = planned_e4m3(p), rows = planned_e4m3(of_16k_tokens(keys));
    EXPECT_TRUE(plan.v_is_transposed);
    EXPECT_FALSE(plan.order.goes_on_late());
    EXPECT_EQ(plan.parts_done_of_head, 0);
    EXPECT_TRUE(plan.forward.pdl);
    const TensorSpan& v = plan.forward.call.v;
    EXPECT_EQ(v.rows, 128);
    EXPECT_EQ(v.columns, keys);
    EXPECT_EQ(v.row_stride, keys);
    EXPECT_EQ(v.head_stride, keys * 128);
    EXPECT_EQ(v.batch_stride, keys * 16 * 128);
    EXPECT_EQ(tensor_map_obstacle(v), nullptr);
    EXPECT_LT(plan.workspace_bytes, 1 << 20);
    EXPECT_GT(rows.workspace_bytes, 16384 * 16 * 128);
  }
}

// TMA has zeros for what is behind them.
TEST(PlanE4m3, a_transposed_v_ends_with_the_last_16_keys) {
  for (const auto& [keys, places] : {std::pair{1, 16}, {16, 16}, {17, 32}, {1000, 1008}}) {
    Problem p = transposed_16k_tokens(4096);
    p.lengths_k.max = keys;
    EXPECT_EQ(planned_e4m3(p).forward.call.v.columns, places);
  }
}

TEST(PlanE4m3, a_transposed_v_without_keys_is_prepared_as_any_other) {
  Problem p = transposed_16k_tokens(1024);
  p.lengths_k.max = 0;
  EXPECT_FALSE(planned_e4m3(p).v_is_transposed);
}

TEST(PlanE4m3, refuses_strides_of_a_transposed_v_that_tma_cannot_read) {
  Problem p = transposed_16k_tokens(1024);
  p.q = p.k = p.o = of_16k_tokens(1024).v;
  EXPECT_TRUE(check_e4m3_layouts(request_of(p)).ok());
  p.v_transposed.channel_stride = 0;
  const Status status = check_e4m3_layouts(request_of(p));
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("v: strides must be positive"), std::string::npos);
}

}  // namespace
}  // namespace fa3::hopper
