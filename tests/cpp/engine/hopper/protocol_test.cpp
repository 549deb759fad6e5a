// SPDX-License-Identifier: Apache-2.0
//
// The barrier protocol of the forward kernels, run as it stands in the sources on a machine that
// schedules at random (machine/machine.h): who may write and read shared memory when, and that every
// block is multiplied once by each warp that sees it. Broken protocols must be found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <tuple>

#include "engine/hopper/ablation/ablation.h"
#include "engine/hopper/ablation/plain_kernel.cuh"
#include "engine/hopper/compiled.h"
#include "engine/hopper/forward_kernel.cuh"
#include "engine/hopper/launch_forward.h"
#include "host_runtime.h"
#include "machine.h"

namespace fa3::hopper {

// The kernels' shared memory, as far as ordinary loads and stores go.
alignas(kSmemAlignment) unsigned char raw_smem[kMaxSmemBytes];

namespace {

using machine::Fault;
using machine::Pace;
using machine::Product;

struct Shape {
  int seqlen_q, seqlen_k, heads, kv_heads, batches;
  bool causal;
};

struct Trial {
  Shape shape;
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
};

// Tiles whose first key block has an infinite score, which the guarded softmax cannot hold.
bool is_extreme(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2654435761u ^ unsigned(m_block * 31 + head * 7 + batch * 3);
  return mixed % 5 == 0;
}

// What a kernel's protocol differs in.
struct LibraryKernel {
  static constexpr bool kSkipsUnseenBlocks = true;
  static constexpr bool kDrawsTiles = true;
  template <ForwardConfig C>
  static void run(const ForwardParams& params) {
    forward_kernel<C>(params);
  }
  template <ForwardConfig C>
  using Addresses = SmemAddresses<C>;
};
struct PlainKernel {
  static constexpr bool kSkipsUnseenBlocks = false;
  static constexpr bool kDrawsTiles = false;
  template <ForwardConfig C>
  static void run(const ForwardParams& params) {
    plain_kernel<C>(params);
  }
  template <ForwardConfig C>
  using Addresses = PlainAddresses<C>;
};

template <ForwardConfig C, class Kernel = LibraryKernel>
class Run {
 public:
  explicit Run(const Trial& trial) : trial_(trial), lse_(size_t(lse_count()), std::nanf("")) {
    const Shape& s = trial.shape;
    ForwardArguments a;
    a.q = span(&q_, s.seqlen_q, s.heads, C.head_dim);
    a.k = span(&k_, s.seqlen_k, s.kv_heads, C.head_dim);
    a.v = span(&v_, s.seqlen_k, s.kv_heads, C.head_dim_v);
    o_.resize(size_t(lse_count()) * C.head_dim_v * kElementBytes);
    a.o = span(o_.data(), s.seqlen_q, s.heads, C.head_dim_v);
    a.lse = lse_.data();
    a.lse_batch_stride = int64_t{s.heads} * s.seqlen_q;
    a.lse_head_stride = s.seqlen_q;
    a.scale = 1;
    a.causal = s.causal;
    a.seqlen_k = s.seqlen_k;
    a.heads_per_kv_head = s.heads / s.kv_heads;
    workspace_.resize(size_t(forward_workspace_bytes(forward_num_tiles(C, a))), 0xcd);
    a.workspace = workspace_.data();
    EXPECT_EQ(launch_forward({C, nullptr, smem_bytes<C>()}, a, nullptr), cudaSuccess);
    launch_ = machine::last_launch;
    std::fill(std::begin(raw_smem), std::end(raw_smem), 0xcd);
    outcome_ = machine::run_block(setting(), C.threads() / kWarpSize, launch_.blocks,
                                  [this] { Kernel::template run<C>(launch_.params); });
  }

  const std::string& error() const { return outcome_.error; }

  // Every visible block of every tile of this block, once for each warp, in order; then once more
  // the tiles that were beyond the guarded softmax.
  void expect_all_work_done() {
    ASSERT_EQ(error(), "");
    const std::vector<int> tiles = my_tiles();
    for (int warp = 0; warp < C.consumer_warps(); ++warp) {
      std::vector<Product> expected;
      for (int tile : tiles) add_expected(tile, warp, &expected);
      const std::vector<Product> all = outcome_.products[size_t(warp + kFirstConsumer)];
      std::vector<Product> scores, outputs;
      for (const Product& p : all) (p.kind == Product::kScores ? scores : outputs).push_back(p);
      ASSERT_EQ(scores.size(), outputs.size()) << "warp " << warp;
      for (size_t i = 0; i < scores.size(); ++i) {
        ASSERT_EQ(scores[i].extent, C.head_dim);
        ASSERT_EQ(outputs[i].extent, C.block_n);
        ASSERT_EQ(key_block(scores[i]), key_block(outputs[i])) << "warp " << warp << " step " << i;
      }
      ASSERT_GE(scores.size(), expected.size()) << "warp " << warp;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(place(scores[i]), place(expected[i])) << "warp " << warp << " step " << i;
      }
      expect_redone(warp, tiles, {scores.begin() + ptrdiff_t(expected.size()), scores.end()});
    }
    expect_rows_written(tiles);
  }

 private:
  static TensorSpan span(void* data, int rows, int heads, int columns, int batches) {
    return {data,   batches, rows, heads, columns, int64_t{rows} * heads * columns, heads * columns,
            columns};
  }
  TensorSpan span(void* data, int rows, int heads, int columns) const {
    return span(data, rows, heads, columns, trial_.shape.batches);
  }
  int64_t lse_count() const {
    return int64_t{trial_.shape.batches} * trial_.shape.heads * trial_.shape.seqlen_q;
  }

  machine::Setting setting() const {
    machine::Setting setting{.seed = trial_.seed, .pace = trial_.pace, .fault = trial_.fault};
    const typename Kernel::template Addresses<C> at{machine::kSmemBase};
    setting.kv = {at.kv_ring().full(0), at.kv_ring().empty(0), C.kv_slots};
    setting.infinite = [seed = trial_.seed](const Product& p) {
      return p.key_row == 0 && is_extreme(seed, p.q_row / C.block_m, p.q_head, p.batch);
    };
    return setting;
  }

  // The tiles that this block drew, or that were dealt to it.
  std::vector<int> my_tiles() const {
    const int all = launch_.params.order.num_tiles(), blocks = int(launch_.blocks);
    std::vector<int> tiles = {0};
    if (Kernel::kDrawsTiles && launch_.params.ticket_counter != nullptr) {
      for (int ticket : outcome_.drawn) tiles.push_back(ticket + blocks);
    } else {
      for (int tile = blocks; tile < all; tile += blocks) tiles.push_back(tile);
    }
    std::erase_if(tiles, [all](int tile) { return tile >= all; });
    return tiles;
  }

  KeyBlocks blocks_of(const TileIndex& tile, int warpgroup) const {
    const Shape& s = trial_.shape;
    const int first_row = tile.m_block * C.block_m + warpgroup * kRowsPerWarpgroup;
    if (first_row >= s.seqlen_q) return {};
    return key_blocks(first_row, kRowsPerWarpgroup, C.block_n, s.seqlen_q, s.seqlen_k, s.causal);
  }

  void add_expected(int tile, int warp, std::vector<Product>* expected) const {
    const TileIndex index = launch_.params.order.tile(tile);
    int num_blocks = blocks_of(index, warp / 4).count;
    for (int w = 0; w < C.consumers() && !Kernel::kSkipsUnseenBlocks; ++w) {
      num_blocks = std::max(num_blocks, blocks_of(index, w).count);
    }
    for (int block = num_blocks - 1; block >= 0; --block) {
      expected->push_back({.kind = Product::kScores,
                           .q_row = index.m_block * C.block_m + warp * kRowsPerWarp,
                           .q_head = index.head,
                           .key_row = block * C.block_n,
                           .kv_head = index.head / (trial_.shape.heads / trial_.shape.kv_heads),
                           .batch = index.batch});
    }
  }

  bool must_be_redone(int tile) const {
    const TileIndex index = launch_.params.order.tile(tile);
    if (!is_extreme(trial_.seed, index.m_block, index.head, index.batch)) return false;
    for (int w = 0; w < C.consumers(); ++w) {
      const KeyBlocks blocks = blocks_of(index, w);
      if (blocks.count > 0 && blocks.ordinary_from > 0) return true;
    }
    return false;
  }

  void expect_redone(int warp, const std::vector<int>& tiles, std::vector<Product> scores) const {
    std::set<std::tuple<int, int, int, int, int>> seen;
    for (const Product& p : scores) ASSERT_TRUE(seen.insert(place(p)).second) << "redone twice";
    std::vector<Product> expected;
    for (int tile : tiles) {
      if (must_be_redone(tile)) add_expected(tile, warp, &expected);
    }
    ASSERT_EQ(scores.size(), expected.size()) << "warp " << warp << ", redone";
    for (const Product& p : expected) ASSERT_TRUE(seen.contains(place(p)));
  }

  // Lane 0 writes O and the LSE of its first row and of the row 8 below.
  void expect_rows_written(const std::vector<int>& tiles) const {
    const Shape& s = trial_.shape;
    constexpr int kColumnsApart = 32;  // of a lane's stores
    std::set<const void*> expected;
    for (int tile : tiles) {
      const TileIndex index = launch_.params.order.tile(tile);
      const bool extreme = is_extreme(trial_.seed, index.m_block, index.head, index.batch);
      const int end = std::min(s.seqlen_q, (index.m_block + 1) * C.block_m);
      for (int row = index.m_block * C.block_m; row < end; row += tile::kRowDistance) {
        const int64_t at = (int64_t{index.batch} * s.heads + index.head) * s.seqlen_q + row;
        ASSERT_TRUE(extreme || !std::isnan(lse_[size_t(at)])) << "row " << row << " not written";
        const int64_t o_row = (int64_t{index.batch} * s.seqlen_q + row) * s.heads + index.head;
        for (int column = 0; column < C.head_dim_v; column += kColumnsApart) {
          expected.insert(&o_[size_t(o_row * C.head_dim_v + column) * kElementBytes]);
        }
      }
    }
    ASSERT_EQ(std::set<const void*>(outcome_.stored.begin(), outcome_.stored.end()), expected);
  }

  static constexpr int kFirstConsumer = C.threads() / kWarpSize - C.consumer_warps();

  static std::tuple<int, int, int, int, int> place(const Product& p) {
    return {p.q_row, p.q_head, p.key_row, p.kv_head, p.batch};
  }
  static std::tuple<int, int, int> key_block(const Product& p) {
    return {p.key_row, p.kv_head, p.batch};
  }

  Trial trial_;
  char q_ = 0, k_ = 0, v_ = 0;  // stand for tensors
  std::vector<unsigned char> o_;
  std::vector<float> lse_;
  std::vector<unsigned char> workspace_;
  machine::Launch launch_;
  machine::Outcome outcome_;
};

constexpr Shape kShapes[] = {
    // Groups of three are never packed: the model knows rows as queries.
    {.seqlen_q = 500, .seqlen_k = 700, .heads = 2, .kv_heads = 2, .batches = 2, .causal = false},
    {.seqlen_q = 700, .seqlen_k = 700, .heads = 6, .kv_heads = 2, .batches = 1, .causal = true},
    {.seqlen_q = 384, .seqlen_k = 50, .heads = 3, .kv_heads = 1, .batches = 3, .causal = false},
    {.seqlen_q = 900, .seqlen_k = 300, .heads = 3, .kv_heads = 1, .batches = 1, .causal = true},
    {.seqlen_q = 1, .seqlen_k = 900, .heads = 4, .kv_heads = 4, .batches = 2, .causal = true},
};

constexpr Pace kPaces[] = {
    {},
    {.name = "slow producer", .producer = 0.01},
    {.name = "slow consumers", .consumers = 0.01},
    {.name = "slow copies", .engines = 0.02},
    {.name = "one slow warp", .slow_warp = 6},
    {.name = "another slow warp", .engines = 10, .slow_warp = 11, .interruption = 0.5},
};

unsigned num_seeds() {
  return std::getenv("FA3_TEST_FULL") ? 60 : std::getenv("FA3_TEST_QUICK") ? 1 : 4;
}

template <int Row>
struct RowNumber {
  static constexpr int kRow = Row;
};

template <class Number>
class Protocol : public testing::Test {};

template <class Sequence>
struct Rows;
template <int... Row>
struct Rows<std::integer_sequence<int, Row...>> {
  using Types = testing::Types<RowNumber<Row>...>;
};
using AllRows = Rows<std::make_integer_sequence<int, int(kForwardTable.size())>>::Types;
TYPED_TEST_SUITE(Protocol, AllRows);

TYPED_TEST(Protocol, every_block_is_multiplied_once_whoever_is_slow) {
  constexpr ForwardConfig kConfig = kForwardTable[TypeParam::kRow].config;
  for (const Shape& shape : kShapes) {
    for (const Pace& pace : kPaces) {
      for (unsigned seed = 0; seed < num_seeds(); ++seed) {
        Run<kConfig> run({.shape = shape, .seed = seed, .pace = pace});
        run.expect_all_work_done();
        ASSERT_FALSE(this->HasFatalFailure())
            << pace.name << ", " << shape.seqlen_q << "x" << shape.seqlen_k << ", seed " << seed;
      }
    }
  }
}

template <int Variant>
struct VariantNumber {
  static constexpr int kVariant = Variant;
};
template <class Sequence>
struct Variants;
template <int... Variant>
struct Variants<std::integer_sequence<int, Variant...>> {
  using Types = testing::Types<VariantNumber<Variant>...>;
};
using AllVariants = Variants<std::make_integer_sequence<int, int(kAblation.size())>>::Types;
template <class Number>
class AblationProtocol : public testing::Test {};
TYPED_TEST_SUITE(AblationProtocol, AllVariants);

TYPED_TEST(AblationProtocol, every_block_is_multiplied_once_whoever_is_slow) {
  constexpr const AblationVariant& kVariant = kAblation[TypeParam::kVariant];
  using Kernel = std::conditional_t<kVariant.loop == Loop::kPlain, PlainKernel, LibraryKernel>;
  for (const Shape& shape : kShapes) {
    for (const Pace& pace : kPaces) {
      // Without a producer warps wait by asking again and again, which takes long here.
      const unsigned seeds = kVariant.config.warp_specialised ? num_seeds() : 1;
      for (unsigned seed = 0; seed < seeds; ++seed) {
        Run<kVariant.config, Kernel> run({.shape = shape, .seed = seed, .pace = pace});
        run.expect_all_work_done();
        ASSERT_FALSE(this->HasFatalFailure())
            << kVariant.name << ", " << pace.name << ", " << shape.seqlen_q << "x" << shape.seqlen_k
            << ", seed " << seed;
      }
    }
  }
}

// What the machine says about a broken protocol, the first time in many tries that it says anything.
template <ForwardConfig C>
std::string first_error(Fault fault, const std::vector<Pace>& paces) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const Pace& pace : paces) {
      Run<C> run({.shape = kShapes[seed % 2], .seed = seed, .pace = pace, .fault = fault});
      if (!run.error().empty()) return run.error();
    }
  }
  return "";
}

class BrokenProtocol : public testing::Test {
 protected:
  // Two consumers that take turns, two slabs a slot.
  static constexpr ForwardConfig kConfig{};

  static void expect_found(Fault fault, const std::string& says,
                           const std::vector<Pace>& paces = {std::begin(kPaces),
                                                             std::end(kPaces)}) {
    const std::string error = first_error<kConfig>(fault, paces);
    EXPECT_FALSE(error.empty());
    EXPECT_NE(error.find(says), std::string::npos) << "said: '" << error << "'";
  }
};

TEST_F(BrokenProtocol, released_before_it_was_read) {
  expect_found(Fault::kReleaseBeforeRead, "overwritten while it is read");
}
TEST_F(BrokenProtocol, producer_in_the_wrong_phase) {
  expect_found(Fault::kProducerPhase, "deadlock");
}
TEST_F(BrokenProtocol, consumers_in_the_wrong_phase) {
  // Depending on who is first, they read too early or wait for ever.
  expect_found(Fault::kConsumerPhase, "");
}
TEST_F(BrokenProtocol, one_arrival_too_few) {
  expect_found(Fault::kOneArrivalTooFew, "overwritten while it is read", {{.slow_warp = 6}});
}
TEST_F(BrokenProtocol, one_arrival_too_many) {
  expect_found(Fault::kOneArrivalTooMany, "deadlock");
}
TEST_F(BrokenProtocol, a_lost_release) {
  expect_found(Fault::kLostRelease, "deadlock");
}
TEST_F(BrokenProtocol, full_after_half_of_the_bytes) {
  expect_found(Fault::kTooFewBytes, "read before it was filled");
}
TEST_F(BrokenProtocol, nobody_begins) {
  expect_found(Fault::kNoFirstTurn, "deadlock");
}
TEST_F(BrokenProtocol, a_turn_given_twice) {
  expect_found(Fault::kTurnGivenTwice, "turn");
}

}  // namespace
}  // namespace fa3::hopper
