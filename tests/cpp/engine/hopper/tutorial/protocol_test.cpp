// SPDX-License-Identifier: Apache-2.0
//
// The barriers of the plain kernel (plain_kernel.cuh), and of its variants that the ablation times
// (benchmarks/ablation), run as they stand on the machine that schedules at random: every warp
// multiplies every block of its tile once, in order, and stores its rows; broken barriers are found
// out.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

#include "ablation/ablated_kernel.cuh"
#include "cuda/plain_params.h"
#include "many_orders.h"

namespace fa3::hopper {

namespace {

using machine::Fault;
using machine::Product;

constexpr int kHeadDim = 128, kBlockN = 128;

struct Plain {
  using Forward = PlainForward<Element::kBf16, kHeadDim, kBlockN>;
  static constexpr int kFirstConsumerWarp = kWarpsPerWarpgroup;
  static constexpr auto kKernel = &plain_kernel<Element::kBf16, kHeadDim, kBlockN>;
};

template <int Stages, int Lag, bool Producer, bool PingPong_>
struct Variant {
  using Forward =
      Ablated<Element::kBf16, kHeadDim, kBlockN, Stages, Lag, Producer, PingPong_, true>;
  static constexpr int kFirstConsumerWarp = Producer ? kWarpsPerWarpgroup : 0;
  static constexpr auto kKernel =
      &ablated_kernel<Element::kBf16, kHeadDim, kBlockN, Stages, Lag, Producer, PingPong_, true>;
};

struct CallShape {
  int seqlen_q, seqlen_k, heads, kv_heads, batches;
  bool causal;
};

constexpr CallShape kShapes[] = {
    {.seqlen_q = 300, .seqlen_k = 700, .heads = 2, .kv_heads = 2, .batches = 2, .causal = false},
    {.seqlen_q = 700, .seqlen_k = 700, .heads = 4, .kv_heads = 2, .batches = 1, .causal = true},
    {.seqlen_q = 50, .seqlen_k = 50, .heads = 1, .kv_heads = 1, .batches = 1, .causal = false},
    {.seqlen_q = 900, .seqlen_k = 300, .heads = 3, .kv_heads = 1, .batches = 1, .causal = true},
};

template <class Subject>
class PlainRun {
  using Forward = typename Subject::Forward;

 public:
  explicit PlainRun(const CallShape& s) : shape_(s) {
    ForwardCall a;
    a.q = span(&q_, s.seqlen_q, s.heads);
    a.k = span(&k_, s.seqlen_k, s.kv_heads);
    a.v = span(&v_, s.seqlen_k, s.kv_heads);
    o_.resize(size_t(s.batches) * s.heads * s.seqlen_q * kHeadDim * 2);
    a.o = span(o_.data(), s.seqlen_q, s.heads);
    a.scale = 1;
    if (s.causal) a.mask.right = 0;
    a.seqlen_k = s.seqlen_k;
    a.heads_per_kv_head = s.heads / s.kv_heads;
    EXPECT_TRUE(plain_params<Forward>(a, Element::kBf16, &params_));
  }

  int tiles() const { return params_.order.num_tiles(); }

  machine::Outcome run(int tile, machine::Setting setting) const {
    setting.block = unsigned(tile);
    const uint32_t pipeline = machine::kSmemBase + offsetof(typename Forward::Smem, kv_pipeline);
    setting.kv = {pipeline, pipeline + Forward::kStages * uint32_t{sizeof(uint64_t)},
                  Forward::kStages};
    return machine::run_block(setting, Forward::kThreads / kWarpSize, unsigned(tiles()),
                              [this] { Subject::kKernel(params_); });
  }

  void expect_all_work_done(int tile, const machine::Outcome& outcome) const {
    ASSERT_EQ(outcome.error, "");
    const TileIndex at = params_.order.tile(tile);
    const int first_row = at.m_block * Forward::kBlockM;
    for (int warp = 0; warp < Forward::kConsumerWarps; ++warp) {
      std::vector<int> scored, summed;  // first keys
      for (const Product& p : outcome.products[size_t(warp + Subject::kFirstConsumerWarp)]) {
        (p.scores() ? scored : summed).push_back(p.b.row);
        ASSERT_EQ(p.b.tensor, p.scores() ? &k_ : &v_);
        ASSERT_EQ(p.b.head, at.pack / (shape_.heads / shape_.kv_heads));
        ASSERT_EQ(p.b.batch, at.batch);
        if (!p.scores()) continue;
        ASSERT_EQ(p.a.row, first_row + warp * kRowsPerWarp);
        ASSERT_EQ(p.a.head, at.pack);
      }
      ASSERT_EQ(scored, keys_of_tile(first_row));
      ASSERT_EQ(summed, scored);
    }
    ASSERT_EQ(std::set<const void*>(outcome.stored.begin(), outcome.stored.end()),
              places_of_tile(at, first_row));
  }

 private:
  TensorSpan span(void* data, int rows, int heads) const {
    return {data,
            shape_.batches,
            rows,
            heads,
            kHeadDim,
            int64_t{rows} * heads * kHeadDim,
            heads * kHeadDim,
            kHeadDim};
  }

  // The first key of each block that some row sees, from the last block on; at least block 0.
  std::vector<int> keys_of_tile(int first_row) const {
    const int last_row = std::min(first_row + Forward::kBlockM, shape_.seqlen_q) - 1;
    const int diagonal = last_row + shape_.seqlen_k - shape_.seqlen_q;
    const int end = shape_.causal ? diagonal + 1 : shape_.seqlen_k;
    std::vector<int> keys;
    for (int key = (end - 1) / kBlockN * kBlockN; key >= 0 && end > 0; key -= kBlockN) {
      keys.push_back(key);
    }
    return keys.empty() ? std::vector<int>{0} : keys;
  }

  // Lane 0 writes O of its first row and of the row 8 below, 8 columns of each 32.
  std::set<const void*> places_of_tile(const TileIndex& at, int first_row) const {
    std::set<const void*> places;
    const int end = std::min(first_row + Forward::kBlockM, shape_.seqlen_q);
    for (int row = first_row; row < end; row += kRowDistance) {
      const int64_t o_row = (int64_t{at.batch} * shape_.seqlen_q + row) * shape_.heads + at.pack;
      for (int column = 0; column < kHeadDim; column += 32) {
        places.insert(&o_[size_t(o_row * kHeadDim + column) * 2]);
      }
    }
    return places;
  }

  const CallShape shape_;
  char q_ = 0, k_ = 0, v_ = 0;  // stand for tensors
  std::vector<unsigned char> o_;
  PlainParams params_{};
};

template <class Subject>
void expect_every_block_once(std::span<const CallShape> shapes) {
  for (const CallShape& shape : shapes) {
    const PlainRun<Subject> run(shape);
    for (const machine::Pace& pace : machine::kManyPaces) {
      for (int tile = 0; tile < run.tiles(); ++tile) {
        run.expect_all_work_done(tile, run.run(tile, {.seed = unsigned(tile), .pace = pace}));
        ASSERT_FALSE(testing::Test::HasFatalFailure())
            << pace.name << ", " << shape.seqlen_q << ", tile " << tile;
      }
    }
  }
}

TEST(PlainProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  expect_every_block_once<Plain>(kShapes);
}

// With an even and an odd number of blocks.
TEST(PlainProtocol, so_it_is_in_every_variant_of_the_ablation) {
  constexpr CallShape kTwo[] = {
      {.seqlen_q = 200, .seqlen_k = 700, .heads = 1, .kv_heads = 1, .batches = 1, .causal = false},
      {.seqlen_q = 200, .seqlen_k = 900, .heads = 1, .kv_heads = 1, .batches = 1, .causal = false}};
  expect_every_block_once<Variant<4, 1, true, false>>(kTwo);
  expect_every_block_once<Variant<4, 1, true, true>>(kTwo);
  expect_every_block_once<Variant<2, 1, true, false>>(kTwo);
  expect_every_block_once<Variant<4, 0, true, false>>(kTwo);
  expect_every_block_once<Variant<4, 2, true, false>>(kTwo);
  expect_every_block_once<Variant<4, 1, false, false>>(kTwo);
  expect_every_block_once<Variant<4, 0, false, false>>(kTwo);
}

TEST(PlainProtocol, broken_barriers_are_found_out) {
  const PlainRun<Plain> run(kShapes[0]);
  for (Fault fault : {Fault::kReleaseBeforeRead, Fault::kProducerPhase, Fault::kConsumerPhase,
                      Fault::kOneArrivalTooMany, Fault::kLostRelease, Fault::kTooFewBytes}) {
    for (const machine::Pace& pace : machine::kManyPaces) {
      EXPECT_NE(run.run(0, {.pace = pace, .fault = fault}).error, "")
          << "fault " << int(fault) << ", " << pace.name;
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
