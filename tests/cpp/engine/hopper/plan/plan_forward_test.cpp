// SPDX-License-Identifier: Apache-2.0
// The kernel table's budgets, which row a shape gets, and the reasons for saying no.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <tuple>

#include "engine/hopper/config/register_budget.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plan_forward.h"
#include "engine/hopper/plan/select/choose_kv_loader.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select_kernel.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"
#include "plain_problem.h"

namespace fa3::hopper {
namespace {

// Register files and stages have no static_assert of their own; shared memory has.
TEST(ForwardTable, every_row_fits_the_register_file_and_keeps_a_stage_to_load_into) {
  constexpr int kRegistersPerLaunchThreadQuad = 512;  // 64 K registers over 128 threads
  std::vector<KernelInstance> rows;
  for (const KernelInstance& row : kForwardTable) {
    for (const Variant variant : {Variant::kDense, Variant::kGeneral, Variant::kCapped}) {
      rows.push_back(row);
      rows.back().config = row.config.with(Element::kBf16, variant);
    }
  }
  rows.insert(rows.end(), kE4m3Table.begin(), kE4m3Table.end());
  rows.insert(rows.end(), kStreamKTable.begin(), kStreamKTable.end());
  rows.insert(rows.end(), kMaskTable.begin(), kMaskTable.end());
  rows.insert(rows.end(), kContinuedTable.begin(), kContinuedTable.end());
  for (const KernelInstance& row : kCacheTable) {
    rows.push_back(row);
    rows.back().config.variant = Variant::kGeneral;
  }
  for (const KernelInstance& row : rows) {
    const ForwardConfig& c = row.config;
    EXPECT_LE(
        c.ctas_per_sm * (register_budget(c).producer + c.consumers() * register_budget(c).consumer),
        kRegistersPerLaunchThreadQuad);
    EXPECT_LE(consumer_registers_used(c), register_budget(c).consumer);
    EXPECT_GE(c.kv_stages, 3);  // K of the next block beside V of this one, and one to load into
  }
}

// Groups of tiles are counted as one head with as many times more query blocks.
TEST(TileOrder, has_as_many_tiles_where_some_come_together) {
  Problem p = plain();
  p.batch = 6;
  p.mask = MaskRule{.right = 0};
  const ForwardCall call = call_of(p);
  const ForwardConfig& c = kForwardTable[size_t(select_kernel(shape_of(p)))].config;
  const TileOrder alone = tile_order(c, call, PackGqa{}, kSms);
  for (const TilesTogether together : {TilesTogether{2, 1}, {1, 3}, {2, 2}}) {
    const TileOrder groups = tile_order(c, call, PackGqa{}, kSms, together);
    EXPECT_EQ(groups.num_m_blocks, alone.num_m_blocks * together.count());
    EXPECT_EQ(groups.num_packs, alone.num_packs / together.packs);
    EXPECT_EQ(groups.num_batches, alone.num_batches / together.batches);
    EXPECT_EQ(groups.num_tiles(), alone.num_tiles());
    EXPECT_LE(groups.tail_heads, groups.num_packs * groups.num_batches);
  }
}

constexpr int64_t kSomeKeys[] = {1, 100, 1000, 1535, 1536, 4096, 100000};

// Calls visit(shape) for every shape that differs in what the choice may depend on.
template <class Visitor>
void for_each_shape(Visitor&& visit) {
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      for (int64_t keys : kSomeKeys) {
        visit(ForwardShape{d, dv, keys});
        visit(ForwardShape{d, dv, keys, 64});
      }
    }
  }
}

bool fits(const KernelInstance& row, const ForwardShape& shape) {
  return row.config.head_dim >= shape.head_dim && row.config.head_dim_v >= shape.head_dim_v &&
         shape.keys <= row.max_keys && shape.rows <= row.max_rows;
}

int columns(const KernelInstance& row) {
  return row.config.head_dim + row.config.head_dim_v;
}

TEST(SelectKernel, gives_a_row_that_fits_wherever_there_is_one_and_none_with_more_columns) {
  for_each_shape([](const ForwardShape& shape) {
    const int chosen = select_kernel(shape);
    bool any = false;
    for (const KernelInstance& row : kForwardTable) {
      if (!fits(row, shape)) continue;
      any = true;
      ASSERT_NE(chosen, kNoKernel) << shape.head_dim << "/" << shape.head_dim_v;
      EXPECT_LE(columns(kForwardTable[chosen]), columns(row))
          << shape.head_dim << "/" << shape.head_dim_v << ", " << shape.keys << " keys";
    }
    ASSERT_EQ(any, chosen != kNoKernel) << shape.head_dim << "/" << shape.head_dim_v;
    if (any) {
      EXPECT_TRUE(fits(kForwardTable[chosen], shape));
    }
  });
}

TEST(SelectKernel, gives_every_row_to_some_shape) {
  std::set<int> chosen;
  for_each_shape([&](ForwardShape shape) {
    for (const bool split : {false, true}) {
      shape.split = split;
      chosen.insert(select_kernel(shape));
    }
  });
  chosen.erase(kNoKernel);
  EXPECT_EQ(chosen.size(), kForwardTable.size()) << "a kernel that nothing chooses is built";
}

TEST(SelectKernel, gives_every_e4m3_row_to_some_shape) {
  std::set<int> chosen;
  for_each_shape([&](const ForwardShape& shape) {
    for (const Variant variant : {Variant::kDense, Variant::kCapped}) {
      const int row = select_e4m3_kernel(shape, variant);
      chosen.insert(row);
      if (row != kNoKernel) {
        EXPECT_EQ(kE4m3Table[size_t(row)].config.variant, variant);
      }
    }
  });
  chosen.erase(kNoKernel);
  const auto transposes = [](const KernelInstance& row) { return row.config.transposes_v; };
  const auto others = std::ranges::count_if(kE4m3Table, transposes);  // chosen by the call
  EXPECT_EQ(chosen.size() + size_t(others), kE4m3Table.size())
      << "a kernel that nothing chooses is built";
}

TEST(SelectKernel, gives_every_row_of_quantized_caches_to_some_shape) {
  std::set<int> chosen;
  for_each_shape(
      [&](const ForwardShape& shape) { chosen.insert(select_kernel(shape, kCacheTable)); });
  chosen.erase(kNoKernel);
  EXPECT_EQ(chosen.size(), kCacheTable.size()) << "a kernel that nothing chooses is built";
}

TEST(SelectKernel, gives_short_keys_more_and_smaller_tiles) {
  for_each_shape([](const ForwardShape& shape) {
    ForwardShape longer = shape;
    longer.keys = 100000;
    if (select_kernel(shape) == kNoKernel) return;
    EXPECT_LE(kForwardTable[select_kernel(shape)].config.block_m,
              kForwardTable[select_kernel(longer)].config.block_m);
  });
}

// Eight heads of 64 queries share keys.
TEST(SelectKernel, gives_groups_of_short_sequences_several_ctas_an_sm) {
  for (int64_t d : {64, 128}) {
    const auto chosen = [d](int64_t keys, int64_t rows) {
      return kForwardTable[size_t(select_kernel({d, d, keys, rows}))].config;
    };
    EXPECT_GT(chosen(64, 8 * 64).ctas_per_sm, 1);
    EXPECT_EQ(chosen(64, 8 * 65).ctas_per_sm, 1);
    EXPECT_EQ(chosen(65, 8 * 64).ctas_per_sm, 1);
  }
}

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
      {"O is float32", [](Problem& p) { p.o.dtype = DType::float32; }},
      {"multiples of 8", [](Problem& p) { p.head_dim = 100; }},
      {"the largest have 128", [](Problem& p) { p.head_dim_v = 136; }}};
  for (const auto& [reason, change] : refused) {
    EXPECT_NE(refusal_after(change).find(reason), std::string::npos) << refusal_after(change);
  }
}

TEST(Variants, what_dense_kernels_do_not_know_asks_for_others) {
  const auto variant_after = [](auto change) {
    Problem p = plain();
    change(p);
    EXPECT_TRUE(check_forward(p).ok()) << check_forward(p).message();
    return variant_of(p);
  };
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = 100; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = 7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = -7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = -7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.chunk = 7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.has_sink = true; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim = 100; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim_v = 127; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.o.dtype = DType::float32; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.lengths_k.varlen = true; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.softcap = 30; }), Variant::kCapped);
}

TEST(SelectContinued, has_a_kernel_for_the_steps_of_a_ring_alone) {
  const auto variant_after = [](auto change) -> std::optional<Variant> {
    Problem p = plain();
    p.partial.on = true;
    change(p);
    const int row = select_continued_kernel(p);
    if (row == kNoKernel) return std::nullopt;
    const ForwardConfig& c = kContinuedTable[size_t(row)].config;
    EXPECT_TRUE(c.continued && c.head_dim >= p.head_dim && c.head_dim_v >= p.head_dim_v);
    return c.variant;
  };
  EXPECT_EQ(variant_after([](Problem&) {}), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = 0; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.o.dtype = DType::float32; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim = 64; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = 9; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.lengths_k.varlen = true; }), Variant::kGeneral);
  void (*const merged_apart[])(Problem&) = {[](Problem& p) { p.softcap = 5; },
                                            [](Problem& p) { p.has_sink = true; },
                                            [](Problem& p) { p.dropout.threshold = 5; },
                                            [](Problem& p) { p.block_mask.on = true; },
                                            [](Problem& p) { p.kv_dtype = DType::float8_e4m3; },
                                            [](Problem& p) { p.key_places.elsewhere = true; },
                                            [](Problem& p) { p.batch_invariant = true; },
                                            [](Problem& p) { p.head_dim = 100; },
                                            [](Problem& p) { p.head_dim_v = 136; },
                                            [](Problem& p) { p.lengths_q.max = 64; }};
  for (const auto change : merged_apart) EXPECT_EQ(variant_after(change), std::nullopt);
}

// Their dense kernels write O in float32 too.
TEST(SelectContinued, takes_first_steps_that_are_long) {
  Problem p = plain();
  p.o.dtype = DType::float32;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
  p.lengths_k.max = 2000;
  EXPECT_NE(select_continued_kernel(p), kNoKernel);
  p.o.dtype = p.dtype;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
  p.o.dtype = DType::float32;
  p.mask.left = 9;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
}

// Kernels count rows in 32 bits.
TEST(NarrowMask, hides_what_the_mask_does_however_far_its_sides_reach) {
  constexpr int64_t kUnbounded = MaskRule::kUnbounded, kFar = int64_t{1} << 40;
  const int64_t reaches[] = {kUnbounded, -kFar, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, kFar};
  Problem p = plain();
  p.lengths_q.max = 5;
  p.lengths_k.max = 7;
  for (const int64_t left : reaches) {
    for (const int64_t right : reaches) {
      if (left != kUnbounded && right != kUnbounded && left + right < 0) continue;
      p.mask = {.left = left, .right = right};
      const MaskRuleOf<int> narrow = narrow_mask(p);
      for (int q = 0; q < 5; ++q) {
        for (int k = 0; k < 7; ++k) {
          ASSERT_EQ(narrow.visible(q, k, 5, 7), p.mask.visible(q, k, 5, 7)) << left << " " << right;
        }
      }
    }
  }
}

TEST(ShapeOf, counts_the_keys_of_a_window_wherever_it_lies) {
  Problem p = plain();
  p.lengths_q.max = p.lengths_k.max = 10000;
  p.mask = {.left = 300, .right = -100};
  EXPECT_EQ(shape_of(p).keys, 201);
  p.mask = {.right = -100};
  EXPECT_EQ(shape_of(p).keys, 10000);
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
    EXPECT_EQ(table_of(p).data(), kCacheTable.data());
    EXPECT_EQ(call_of(p).cache_is_e5m2, dtype == DType::float8_e5m2);
  }
  p.o.dtype = DType::float32;
  EXPECT_NE(check_forward(p).message().find("float8_e5m2"), std::string::npos);
}

TEST(Variants, a_window_that_reaches_over_the_longest_sequence_needs_no_general_kernel) {
  Problem p = plain();
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask = {.left = 1000, .right = 0};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask = {.left = int64_t{1} << 40, .right = int64_t{1} << 40};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask.left = 999;
  EXPECT_EQ(variant_of(p), Variant::kGeneral);
  p.mask = {.right = 0, .chunk = 1000};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask.chunk = 999;
  EXPECT_EQ(variant_of(p), Variant::kGeneral);
}

// Three warpgroups read small pages by one thread's boxes; whose tiles have 80 keys, those of 256
// too.
TEST(PageBoxes, that_would_be_small_ask_for_another_kernel) {
  const auto chosen = [](int64_t dim, int64_t page_size) {
    Problem p = plain();
    p.head_dim = p.head_dim_v = dim;
    p.num_splits = 1;
    p.lengths_q = {.max = 5000, .total = 5000};
    p.lengths_k = {.max = 5120, .total = 5120};
    p.key_places = {.page_size = page_size, .entries = 1, .elsewhere = page_size > 0};
    if (page_size > 0) p.key_places.pages = 5120 / page_size;
    return kForwardTable[size_t(chosen_for(p).row)].config;
  };
  EXPECT_EQ(chosen(128, 0).consumers(), 3);
  for (const int64_t page_size : {1, 16, 64, 256}) {
    EXPECT_TRUE(chosen(128, page_size).may_split) << page_size;
    EXPECT_TRUE(chosen(96, page_size).may_split) << page_size;
  }
  EXPECT_TRUE(chosen(64, 16).may_split);
  EXPECT_EQ(chosen(64, 256).consumers(), 3) << "boxes of 128 rows";
}

// Tiles of 128 rows, an SM each, of kernels that find tiles themselves.
TEST(DirectTiles, are_those_of_varlen_calls_that_fit_one_wave) {
  struct Plan {
    bool direct;
    int64_t workspace;
  };
  const auto planned = [](int64_t sequences, int64_t keys, bool varlen, bool packed,
                          bool for_any_batch = false) {
    Problem p = plain();
    p.batch = sequences;
    p.num_splits = 1;
    p.batch_invariant = for_any_batch;
    static const int32_t starts[] = {0};
    p.lengths_q = {.max = 300, .total = sequences * 300};
    p.lengths_k = {.max = keys, .total = sequences * keys};
    p.lengths_k.varlen = varlen;
    if (packed) {
      p.lengths_q.cu_seqlens = starts;
      p.lengths_q.varlen = p.lengths_q.in_one_tensor = true;
    }
    const auto [row, tiling] = chosen_for(p);
    const ForwardConfig c = kForwardTable[size_t(row)].config.with(Element::kBf16, variant_of(p));
    return Plan{tiling.scheduler == Scheduler::kDirect,
                plan_launch({c}, call_of(p), tiling, kSms).workspace.bytes};
  };
  EXPECT_TRUE(planned(11, 1000, true, false).direct) << "132 tiles";
  EXPECT_EQ(planned(11, 1000, true, false).workspace, 0);
  EXPECT_FALSE(planned(12, 1000, true, false).direct) << "144 tiles";
  EXPECT_GT(planned(12, 1000, true, false).workspace, 0);
  EXPECT_FALSE(planned(2, 1000, false, false).direct) << "one length";
  EXPECT_TRUE(planned(11, 1000, true, true).direct);
  EXPECT_FALSE(planned(12, 1000, true, true).direct);
  EXPECT_FALSE(planned(7, 9000, true, true).direct) << "three warpgroups";
  EXPECT_FALSE(planned(2, 1000, true, false, true).direct) << "the same for every batch";
}

TEST(ForwardTable, split_tiles_have_one_q_and_its_room_in_the_pipeline) {
  int moved = 0;
  for (const auto& [dense, max_keys, max_rows, why] : kForwardTable) {
    const ForwardConfig general = dense.with(Element::kBf16, Variant::kGeneral);
    EXPECT_EQ(dense.with(Element::kBf16, Variant::kDense).q_stages, dense.q_stages);
    if (!general.can_split() || dense.q_stages == 1) {
      EXPECT_EQ(general.q_stages, dense.q_stages);
      EXPECT_EQ(general.kv_stages, dense.kv_stages);
      continue;
    }
    ++moved;
    EXPECT_EQ(general.q_stages, 1);
    EXPECT_EQ(
        general.tiles().q_bytes() + general.kv_stages * general.tiles().stage_bytes(),
        dense.q_stages * dense.tiles().q_bytes() + dense.kv_stages * dense.tiles().stage_bytes());
  }
  EXPECT_EQ(moved, 2);
}

TEST(PageBoxes, divide_a_page_and_a_tile) {
  constexpr ForwardConfig kConfig{.block_n = 80};
  const auto rows = [&](int64_t page_size, bool padded_left) {
    ForwardCall call;
    call.places.page_size = page_size;
    call.lengths_k.padded_left = padded_left;
    return kv_box_rows(kConfig, call);
  };
  EXPECT_EQ(rows(0, true), 80);
  EXPECT_EQ(rows(16, false), 16);
  EXPECT_EQ(rows(7, false), 1);
  EXPECT_EQ(rows(100, false), 20);
  EXPECT_EQ(rows(640, false), 80);
  EXPECT_EQ(rows(64, true), 1);
}

TEST(CpAsyncKeys, are_those_of_few_queries_or_of_pages_whose_boxes_are_small) {
  constexpr ForwardConfig kMany =
      ForwardConfig{.may_split = true}.with(Element::kBf16, Variant::kGeneral);
  constexpr ForwardConfig kFew =
      ForwardConfig{.block_m = 64, .block_n = 64, .may_split = true}.with(Element::kBf16,
                                                                          Variant::kGeneral);
  constexpr ForwardConfig kNotSplit = ForwardConfig{}.with(Element::kBf16, Variant::kGeneral);
  const auto cp_async = [](const ForwardConfig& c, int64_t page_size, int columns = 128) {
    ForwardCall call;
    call.places.page_size = page_size;
    call.k = {nullptr, 10, page_size, 8, 128, page_size * 1024, 1024, 128};
    call.v = call.k;
    call.v.columns = columns;
    return cp_async_keys(c, call).active;
  };
  EXPECT_TRUE(cp_async(kMany, 1));
  EXPECT_TRUE(cp_async(kMany, 32));
  EXPECT_TRUE(cp_async(kMany, 48));
  EXPECT_FALSE(cp_async(kMany, 64));
  EXPECT_FALSE(cp_async(kMany, 256));
  EXPECT_TRUE(cp_async(kFew, 256));
  EXPECT_FALSE(cp_async(kMany, 0)) << "no pages";
  EXPECT_TRUE(cp_async(kFew, 0));
  EXPECT_FALSE(cp_async(kFew, 16, 124)) << "rows end within 16 bytes";
  EXPECT_FALSE(cp_async(kNotSplit, 16)) << "no registers for it";
}

// The place of a row is a 31-bit multiple of what divides the strides of rows and pages.
TEST(CpAsyncKeys, rows_lie_at_multiples_of_a_unit_or_are_left_to_the_copy_engine) {
  constexpr ForwardConfig kConfig =
      ForwardConfig{.may_split = true}.with(Element::kBf16, Variant::kGeneral);
  ForwardCall call;
  call.places.page_size = 16;
  // Pages of heads of rows.
  call.k = {nullptr, int64_t{1} << 24, 16, 8, 128, 8 * 16 * 128, 128, 16 * 128};
  call.v = call.k;
  EXPECT_TRUE(cp_async_keys(kConfig, call).active);
  call.v.batch_stride += 8;
  EXPECT_FALSE(cp_async_keys(kConfig, call).active)
      << "units of 16 bytes do not reach the last page";
  call.v.batches = 1;
  EXPECT_TRUE(cp_async_keys(kConfig, call).active) << "a stride that nobody uses";
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
