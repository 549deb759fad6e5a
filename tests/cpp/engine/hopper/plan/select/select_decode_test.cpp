// SPDX-License-Identifier: Apache-2.0
// Which calls decode kernels take, and how many CTAs share their keys.
#include <gtest/gtest.h>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {
namespace {

// A kernel for few query rows, and how its tiles are dealt.
struct Decoded {
  int head_dim = 0, rows = 0;
  bool is_single = false;
  int clusters = 0, cluster = 0;  // of CTAs
  bool operator==(const Decoded&) const = default;
};
Decoded decoded(const Problem& p) {
  const auto [row, tiling] = select_decode(request_of(p, kSms));
  if (row == nullptr) return {};
  const Kernel& c = row->kernel;
  EXPECT_EQ(c.dequantizes(), p.has_float8());
  return {c.shape.head_dim, c.shape.block_m, c.is_single_sequence(), tiling.split.ctas,
          1 << tiling.split.cluster_log2};
}

TEST(SelectDecode, do_one_sequence_in_clusters) {
  const auto one = [](int64_t keys, const auto& change) {
    Problem p = several_tokens(1, 1, keys, 128);
    change(p);
    return decoded(p);
  };
  const auto as_it_is = [](Problem&) {};
  const auto two_heads = [](Problem& p) { p.heads_q = 16, p.heads_k = 2; };
  EXPECT_EQ(one(700, as_it_is), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, as_it_is), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(131072, as_it_is), (Decoded{128, 8, true, 8, 8}));  // half of the SMs
  EXPECT_EQ(one(400, as_it_is), Decoded{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 2; }), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 3; }), Decoded{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 64; }),
            (Decoded{64, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 256; }),
            (Decoded{256, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, two_heads), (Decoded{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6144, two_heads), (Decoded{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6145, two_heads), (Decoded{128, 8, true, 8, 8}));  // four parts a tile
  const auto one_head = [](Problem& p) { p.heads_q = 8, p.heads_k = 1; };
  EXPECT_EQ(one(4096, one_head), (Decoded{128, 8, true, 1, 16}));
  EXPECT_EQ(one(4097, one_head), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = 16, p.heads_k = 2, p.lengths_q.max = 2; }),
            (Decoded{128, 16, true, 4, 8}));  // sixteen would need as many SMs
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_k = 4; }), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_q = 32, p.heads_k = 4; }),
            (Decoded{128, 8, true, 4, 16}));
  // Rows that threads copy: half of the SMs are too few from 48 MB on.
  const auto small_pages = [](Problem& p) {
    p.key_places = {.page_size = 1, .entries = 1, .elsewhere = true};
    p.key_places.pages = p.lengths_k.max;
  };
  EXPECT_EQ(one(8192, small_pages), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(32768, small_pages), (Decoded{128, 8, true, 64, 2}));
  EXPECT_EQ(one(65536, small_pages), Decoded{});
  const auto many_heads = [](Problem& p) { p.heads_q = p.heads_k = 32; };
  EXPECT_EQ(one(8192, many_heads), (Decoded{128, 8, true, 32, 2}));
  EXPECT_EQ(one(16384, many_heads), Decoded{});  // more than 160 MB
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = p.heads_k = 33; }), Decoded{});
  for (const auto& change :
       {+[](Problem& p) { p.mask.left = 100; }, +[](Problem& p) { p.softcap = 30; },
        +[](Problem& p) { p.o.dtype = DType::float32; }, +[](Problem& p) { p.num_splits = 4; },
        +[](Problem& p) { p.num_splits = 1; }, +[](Problem& p) { p.batch_invariant = true; }}) {
    EXPECT_EQ(one(2048, change), Decoded{});
  }
}

TEST(SelectDecode, do_several_sequences_of_few_bytes) {
  const auto several = [](int64_t batch, int64_t keys, int64_t dim = 128) {
    return decoded(several_tokens(batch, 1, keys, dim));
  };
  EXPECT_EQ(several(8, 2048), (Decoded{128, 8, false, 64, 2}));
  EXPECT_EQ(several(64, 512), (Decoded{128, 8, false, 128, 1}));
  EXPECT_EQ(several(5, 8192), (Decoded{128, 8, false, 64, 2}));  // 160 MB
  EXPECT_EQ(several(6, 8192), Decoded{});
  EXPECT_EQ(several(8, 8192, 64), (Decoded{64, 8, false, 64, 2}));
  EXPECT_EQ(several(0, 8192), Decoded{});
}

TEST(SelectDecode, do_quantized_caches_of_any_number_of_sequences) {
  const auto quantized = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
    Problem p = several_tokens(batch, queries, keys, dim);
    p.kv_dtype = DType::float8_e4m3;
    return decoded(p);
  };
  EXPECT_EQ(quantized(8, 1, 8192, 128), (Decoded{128, 8, false, 64, 2}));
  EXPECT_EQ(quantized(128, 1, 8192, 128), (Decoded{128, 8, false, 128, 1}));
  EXPECT_EQ(quantized(32, 2, 8192, 128), (Decoded{128, 16, false, 128, 1}));
  EXPECT_EQ(quantized(32, 1, 8192, 64), (Decoded{64, 8, false, 128, 1}));
  // One sequence's: all SMs from 32 MB on, under 16 rows from 16 MB on.
  EXPECT_EQ(quantized(1, 1, 16383, 128), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(quantized(1, 1, 16384, 128), (Decoded{128, 8, true, 64, 2}));
  EXPECT_EQ(quantized(1, 2, 8191, 128), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(quantized(1, 2, 8192, 128), (Decoded{128, 16, true, 64, 2}));
  EXPECT_EQ(quantized(32, 3, 8192, 128), Decoded{});
}

}  // namespace
}  // namespace fa3::hopper
