// SPDX-License-Identifier: Apache-2.0
//
// What each warp of a forward's CTA multiplies, in order: every visible block of every tile, once.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <tuple>
#include <vector>

#include "forward/forward_work.h"

namespace fa3::hopper {

using machine::Product;

class ForwardProducts {
 public:
  using Work = ForwardWork;

  ForwardProducts(const LaunchedForward& launch, const ForwardWorks& works)
      : launch_(launch), works_(works) {}

  // Expects the products of a consumer warp with these tiles.
  void expect_made(const std::vector<Product>& all, const std::vector<Work>& tiles,
                   int warp) const {
    SCOPED_TRACE("warp " + std::to_string(warp));
    std::vector<Product> scores, outputs;
    for (const Product& p : all) (p.scores() ? scores : outputs).push_back(p);
    std::vector<Place> expected;
    for (const Work& work : tiles) add_expected(work, warp, &expected);
    ASSERT_EQ(scores.size(), outputs.size());
    ASSERT_EQ(scores.size(), expected.size());
    if (config_.dequantizes()) {
      expect_filled_in_order(tiles, warp, expected, scores, outputs);
      return;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      ASSERT_EQ(extent(scores[i]),
                extent_of(&launch_.k, config_.shape.block_n, config_.shape.head_dim));
      ASSERT_EQ(extent(outputs[i]),
                extent_of(&launch_.v, config_.shape.head_dim_v, config_.shape.block_n));
      ASSERT_EQ(key_block(scores[i]), value_block(outputs[i]));
      ASSERT_EQ(place(scores[i]), expected[i]);
    }
  }

 private:
  // Tensor, row, column, head and batch of both operands.
  using Place = std::array<std::tuple<const void*, int, int, int, int>, 2>;
  static Place place(const Product& p) {
    const auto of = [](const machine::Content& c) {
      return std::tuple(c.tensor, c.row, c.column, c.head, c.batch);
    };
    return {of(p.a), of(p.b)};
  }

  void add_expected(const Work& work, int warp, std::vector<Place>* expected) const {
    const CallShape& s = launch_.shape;
    const auto& [batch, head, begin, count, used] = work.queries;
    const int query = begin + work.m_block * config_.shape.block_m + warp * kRowsPerWarp;
    // Pages follow each other in one long tensor here.
    const bool paged = s.page_size > 0;
    const int first_key = paged ? work.keys.batch * s.num_pages() * s.page_size : work.keys.begin;
    for (int block = works_.num_blocks_of(work, warp / kWarpsPerWarpgroup) - 1; block >= 0;
         --block) {
      expected->push_back({{{&launch_.q, query, 0, head, batch},
                            {&launch_.k, first_key + works_.key_of_block(work, block), 0,
                             head / (s.heads / s.kv_heads), paged ? 0 : work.keys.batch}}});
    }
  }

  // What threads have written is known by how often it was filled alone: K of block b of the stream
  // is the (2 b - 1)-th tile in the pipeline, V the (2 b + 2)-th; K of the first is before all, V
  // of the last behind.
  void expect_filled_in_order(const std::vector<Work>& tiles, int warp,
                              const std::vector<Place>& expected,
                              const std::vector<Product>& scores,
                              const std::vector<Product>& outputs) const {
    int all = 0;
    for (const Work& work : tiles) all += works_.most_blocks_of(work);
    size_t i = 0;
    int before = 0;
    for (const Work& work : tiles) {
      const int in_tile = works_.most_blocks_of(work);
      for (int left = works_.num_blocks_of(work, warp / kWarpsPerWarpgroup); left > 0;
           --left, ++i) {
        SCOPED_TRACE("step " + std::to_string(i));
        const int block = before + in_tile - left;
        const int k = block == 0 ? 0 : 2 * block - 1;
        const int v = block == all - 1 ? 2 * block + 1 : 2 * block + 2;
        ASSERT_EQ(place(scores[i])[0], expected[i][0]);
        ASSERT_EQ(scores[i].b.filling, k / config_.shape.kv_stages + 1);
        ASSERT_EQ(outputs[i].b.filling, v / config_.shape.kv_stages + 1);
      }
      before += in_tile;
    }
  }

  static std::tuple<int, int, int> key_block(const Product& p) {
    return {p.b.row, p.b.head, p.b.batch};
  }
  // In K's places: transposed values lie by sequence.
  std::tuple<int, int, int> value_block(const Product& p) const {
    if (!config_.e4m3()) return key_block(p);
    const int32_t* begins = launch_.shape.cu_k;
    if (begins == nullptr) return {p.b.column, p.b.head, p.b.batch};
    return {begins[p.b.batch] + p.b.column, p.b.head, 0};
  }
  using Extent = std::tuple<const void*, int, int, int>;
  // Where the sum of outputs begins is value_block()'s.
  Extent extent(const Product& p) const {
    const int column = config_.e4m3() && !p.scores() ? p.b.row : p.b.column;
    return {p.b.tensor, column, p.columns, p.depth};
  }
  static Extent extent_of(const void* tensor, int columns, int depth) {
    return {tensor, 0, columns, depth};
  }

  const LaunchedForward& launch_;
  const ForwardWorks& works_;
  const Kernel& config_ = launch_.config;
};

}  // namespace fa3::hopper
