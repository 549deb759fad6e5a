// SPDX-License-Identifier: Apache-2.0
//
// A forward kernel's sources on the machine: launched as in the library, then held against what every
// warp should have multiplied and stored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "engine/hopper/forward_kernel.cuh"
#include "engine/hopper/launch_forward.h"
#include "host_runtime.h"
#include "machine.h"

namespace fa3::hopper {

// The kernels' shared memory, as far as ordinary loads and stores go.
alignas(kSmemAlignment) inline unsigned char raw_smem[kMaxSmemBytes];

using machine::Fault;
using machine::Pace;
using machine::Product;

struct Shape {
  int seqlen_q, seqlen_k, heads, kv_heads, batches;
  MaskRuleOf<int> mask;
};

struct Trial {
  Shape shape;
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
};

// Tiles whose first key block has an infinite score, which the guarded softmax cannot hold: its scores
// are computed again.
inline bool is_extreme(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2654435761u ^ unsigned(m_block * 31 + head * 7 + batch * 3);
  return mixed % 5 == 0;
}

template <ForwardConfig C>
class Run {
 public:
  explicit Run(const Trial& trial) : trial_(trial), lse_(size_t(lse_count()), std::nanf("")) {
    const Shape& s = trial.shape;
    ForwardLaunch a;
    a.q = span(&q_, s.seqlen_q, s.heads, C.head_dim);
    a.k = span(&k_, s.seqlen_k, s.kv_heads, C.head_dim);
    a.v = span(&v_, s.seqlen_k, s.kv_heads, C.head_dim_v);
    o_.resize(size_t(lse_count()) * C.head_dim_v * bytes_of(C.output()));
    a.o = span(o_.data(), s.seqlen_q, s.heads, C.head_dim_v);
    a.lse = {lse_.data(), {int64_t{s.heads} * s.seqlen_q, s.seqlen_q, 1}};
    a.scale = 1;
    a.mask = s.mask;
    a.seqlen_k = s.seqlen_k;
    a.heads_per_kv_head = s.heads / s.kv_heads;
    workspace_.resize(size_t(forward_workspace_bytes(C, a)), 0xcd);
    a.workspace = workspace_.data();
    EXPECT_EQ(launch_forward({C, nullptr, smem_bytes<C>()}, a, nullptr), cudaSuccess);
    launch_ = machine::last_launch;
    std::fill(std::begin(raw_smem), std::end(raw_smem), 0xcd);
    outcome_ = machine::run_block(setting(), C.threads() / kWarpSize, launch_.blocks,
                                  [this] { forward_kernel<C>(launch_.params); });
  }

  const std::string& error() const { return outcome_.error; }

  // Every visible block of every tile of this block, once for each warp, in order.
  void expect_all_work_done() {
    ASSERT_EQ(error(), "");
    const std::vector<int> tiles = my_tiles();
    for (int warp = 0; warp < C.consumer_warps(); ++warp) {
      std::vector<Product> expected;
      for (int tile : tiles) add_expected(tile, warp, &expected);
      const std::vector<Product> all = outcome_.products[size_t(warp + kFirstConsumer)];
      std::vector<Product> scores, outputs;
      for (const Product& p : all) (p.scores() ? scores : outputs).push_back(p);
      ASSERT_EQ(scores.size(), outputs.size()) << "warp " << warp;
      for (size_t i = 0; i < scores.size(); ++i) {
        ASSERT_EQ(extent(scores[i]), extent_of(&k_, C.block_n, C.head_dim));
        ASSERT_EQ(extent(outputs[i]), extent_of(&v_, C.head_dim_v, C.block_n));
        ASSERT_EQ(key_block(scores[i]), key_block(outputs[i])) << "warp " << warp << " step " << i;
      }
      ASSERT_EQ(scores.size(), expected.size()) << "warp " << warp;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(place(scores[i]), place(expected[i])) << "warp " << warp << " step " << i;
      }
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
    const SmemAddresses<C> at{machine::kSmemBase};
    setting.kv = {at.kv_ring().full(0), at.kv_ring().empty(0), C.kv_slots};
    setting.infinite = [seed = trial_.seed](const Product& p) {
      return p.scores() && p.b.row == 0 &&
             is_extreme(seed, p.a.row / C.block_m, p.a.head, p.a.batch);
    };
    return setting;
  }

  // The tiles that this block drew, or that were dealt to it.
  std::vector<int> my_tiles() const {
    const int all = launch_.params.order.num_tiles(), blocks = int(launch_.blocks);
    std::vector<int> tiles = {0};
    if (launch_.params.ticket_counter != nullptr) {
      for (int ticket : outcome_.drawn) tiles.push_back(ticket + blocks);
    } else {
      for (int tile = blocks; tile < all; tile += blocks) tiles.push_back(tile);
    }
    std::erase_if(tiles, [all](int tile) { return tile >= all; });
    return tiles;
  }

  // The first key that a tile sees.
  int first_key_of(const TileIndex& tile) const {
    const Shape& s = trial_.shape;
    return s.mask.keys_of(tile.m_block * C.block_m, s.seqlen_q, s.seqlen_k).begin;
  }

  int num_blocks_of(const TileIndex& tile, int warpgroup) const {
    const Shape& s = trial_.shape;
    const int first_row = tile.m_block * C.block_m + warpgroup * kRowsPerWarpgroup;
    if (first_row >= s.seqlen_q) return 0;
    const int end = std::min(first_row + kRowsPerWarpgroup, s.seqlen_q);
    const auto range = block_range(s.mask, first_row, end, s.seqlen_q, s.seqlen_k);
    return visited_blocks(range.from(first_key_of(tile)), C.block_n).end;
  }

  void add_expected(int tile, int warp, std::vector<Product>* expected) const {
    const TileIndex index = launch_.params.order.tile(tile);
    const int num_blocks = num_blocks_of(index, warp / 4);
    for (int block = num_blocks - 1; block >= 0; --block) {
      expected->push_back({.a = {.tensor = &q_,
                                 .row = index.m_block * C.block_m + warp * kRowsPerWarp,
                                 .head = index.pack,
                                 .batch = index.batch},
                           .b = {.tensor = &k_,
                                 .row = first_key_of(index) + block * C.block_n,
                                 .head = index.pack / (trial_.shape.heads / trial_.shape.kv_heads),
                                 .batch = index.batch}});
    }
  }

  // Lane 0 writes O and the LSE of its first row and of the row 8 below.
  void expect_rows_written(const std::vector<int>& tiles) const {
    const Shape& s = trial_.shape;
    constexpr int kColumnsApart = 32;  // of a lane's stores
    std::set<const void*> expected;
    for (int tile : tiles) {
      const TileIndex index = launch_.params.order.tile(tile);
      const bool extreme = is_extreme(trial_.seed, index.m_block, index.pack, index.batch);
      const int end = std::min(s.seqlen_q, (index.m_block + 1) * C.block_m);
      for (int row = index.m_block * C.block_m; row < end; row += kRowDistance) {
        const int64_t at = (int64_t{index.batch} * s.heads + index.pack) * s.seqlen_q + row;
        ASSERT_TRUE(extreme || !std::isnan(lse_[size_t(at)])) << "row " << row << " not written";
        const int64_t o_row = (int64_t{index.batch} * s.seqlen_q + row) * s.heads + index.pack;
        for (int column = 0; column < C.head_dim_v; column += kColumnsApart) {
          expected.insert(&o_[size_t(o_row * C.head_dim_v + column) * bytes_of(C.output())]);
        }
      }
    }
    ASSERT_EQ(std::set<const void*>(outcome_.stored.begin(), outcome_.stored.end()), expected);
  }

  static constexpr int kFirstConsumer = C.threads() / kWarpSize - C.consumer_warps();

  // Tensor, row, column, head and batch of both operands.
  using Place = std::array<std::tuple<const void*, int, int, int, int>, 2>;
  static Place place(const Product& p) {
    const auto of = [](const machine::Content& c) {
      return std::tuple(c.tensor, c.row, c.column, c.head, c.batch);
    };
    return {of(p.a), of(p.b)};
  }
  static std::tuple<int, int, int> key_block(const Product& p) {
    return {p.b.row, p.b.head, p.b.batch};
  }
  using Extent = std::tuple<const void*, int, int, int>;
  static Extent extent(const Product& p) { return {p.b.tensor, p.b.column, p.columns, p.depth}; }
  static Extent extent_of(const void* tensor, int columns, int depth) {
    return {tensor, 0, columns, depth};
  }

  Trial trial_;
  char q_ = 0, k_ = 0, v_ = 0;  // stand for tensors
  std::vector<unsigned char> o_;
  std::vector<float> lse_;
  std::vector<unsigned char> workspace_;
  machine::Launch launch_;
  machine::Outcome outcome_;
};

}  // namespace fa3::hopper
