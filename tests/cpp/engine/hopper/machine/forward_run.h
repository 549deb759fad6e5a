// SPDX-License-Identifier: Apache-2.0
//
// A forward kernel's sources on the machine: launched as in the library, then held against what
// every warp should have multiplied and stored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/scheduler/sequence_window.cuh"
#include "host_runtime.h"
#include "kernel_on_trial.h"
#include "machine.h"
#include "random_map.h"
#include "shape.h"

namespace fa3::hopper {

using machine::Fault;
using machine::Pace;
using machine::Product;

struct Trial {
  Shape shape;
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
  int barrier = 0;             // that the fault is about, by its number
  bool heads_in_work = false;  // e4m3: tiles wait for what the kernel before makes of their heads
  // Where CTAs wait for each other all of them run, side by side, or one after the other in this
  // order, as where only one has room.
  std::vector<int> order{};
  int replays = 0;  // of the launch, on the workspace as it left it
};

// Tiles whose first key block has an infinite score, which the guarded softmax cannot hold: its
// scores are computed again.
inline bool is_extreme(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2654435761u ^ unsigned(m_block * 31 + head * 7 + batch * 3);
  return mixed % 5 == 0;
}

// Tiles of e4m3 whose rows are peaked: their steps follow the maximum.
inline bool is_peaked(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2246822519u ^ unsigned(m_block * 17 + head * 5 + batch * 11);
  return mixed % 2 == 0;
}

class ForwardRun {
 public:
  ForwardRun(const KernelOnTrial& kernel, const Trial& trial)
      : kernel_(kernel), trial_(trial), lse_(size_t(lse_count()), std::nanf("")) {
    const Shape& s = trial.shape;
    ForwardCall a;
    a.q = span(&q_, s.q_rows(), s.heads, config_.head_dim);
    a.k = span(&k_, s.k_rows(), s.kv_heads, config_.head_dim);
    a.v = span(&v_, s.k_rows(), s.kv_heads, config_.head_dim_v);
    if (s.page_size > 0) {
      for (int i = 0; i < s.batches * s.num_pages(); ++i) pages_.push_back(i);
      a.places = {.page_table = pages_.data(),
                  .table_stride = s.num_pages(),
                  .page_size = s.page_size,
                  .entries = s.batches,
                  .pages = s.batches * s.num_pages(),
                  .elsewhere = true};
      for (TensorSpan* t : {&a.k, &a.v}) {
        t->rows = s.page_size;
        t->batches = a.places.pages;
        t->batch_stride = s.page_size * t->row_stride;
      }
    }
    o_.resize(size_t(lse_count()) * config_.head_dim_v * bytes_of(config_.element));
    a.o = span(o_.data(), s.q_rows(), s.heads, config_.head_dim_v);
    a.lse = {lse_.data(), {int64_t{s.heads} * s.q_rows(), s.q_rows(), 1}};
    a.scale = 1;
    a.mask = s.mask;
    a.seqlen_q = s.seqlen_q;
    a.seqlen_k = s.seqlen_k;
    a.varlen = s.varlen() || s.page_size > 0;
    a.sequences = s.batches;
    a.lengths_q = s.lengths_q();
    a.lengths_k = s.lengths_k();
    a.heads_per_kv_head = s.heads / s.kv_heads;
    if (config_.block_mask) a.block_mask = map_.make(s, trial.seed);
    a.cache_is_e5m2 = is_e5m2();
    LaunchOperands operands;
    if (config_.e4m3) give_scales_and_transpose(&a, &operands);
    const Tiling tiling = s.finds_own_tiles() ? Tiling{{}, s.scheduler, s.split}
                                              : whole_tiles(config_, a, {}, machine::kSms);
    ForwardPlan plan =
        plan_launch({config_, nullptr, kernel_.smem_bytes}, a, tiling, machine::kSms);
    operands.v = plan.call.v;
    operands.o = plan.call.o;
    workspace_.resize(size_t(plan.workspace.bytes), 0xcd);
    if (config_.e4m3) follow_preparation(&plan);
    machine::on_launch = [this](const void*, dim3 grid, const void* params, bool pdl) {
      launch_ = {grid.x, *static_cast<const ForwardParams*>(params), pdl};
    };
    EXPECT_EQ(launch_forward(plan, operands, workspace_.data(), nullptr), cudaSuccess);
    opener_combines_ = plan.combine == Combine::kOpener;
    ctas_ = opener_combines_ ? int(launch_.blocks) : 1;
    for (CUtensorMap* map : {&launch_.params.k_map, &launch_.params.v_map}) {
      machine::TensorMap known = machine::decoded(*map);
      known.page_rows = s.page_size;
      known.transposed_later = config_.transposes_v && map == &launch_.params.v_map;
      *map = machine::encoded(known);
    }
    if (s.page_size == 0 && !s.by_cp_async) launch_.params.cp_async.active = false;
    launch_.params.cp_async.k.data = reinterpret_cast<const unsigned char*>(kAddressOfK);
    launch_.params.cp_async.v.data = reinterpret_cast<const unsigned char*>(kAddressOfV);
    if (config_.combine() == CombineKind::kLastCta) prepare_counts();
    for (int i = 0; i <= trial.replays && (i == 0 || error().empty()); ++i) {
      std::ranges::fill(lse_, std::nanf(""));
      ptx::has_dequantized[0] = ptx::has_dequantized[1] = false;
      run();
    }
  }

  const std::string& error() const { return outcome_.error; }
  bool opener_combines() const { return opener_combines_; }

  // Every visible block of every tile of the CTAs that ran, once for each warp, in order.
  void expect_all_work_done() {
    ASSERT_EQ(error(), "");
    std::vector<Work> tiles;
    for (int cta = 0; cta < ctas_; ++cta) {
      const std::vector<Work> own = work_of_cta(cta);
      expect_products(own, cta);
      if (testing::Test::HasFatalFailure()) return;
      tiles.insert(tiles.end(), own.begin(), own.end());
    }
    expect_rows_written(tiles);
    if (config_.dequantizes() && !tiles.empty()) {
      ASSERT_TRUE(ptx::has_dequantized_only(is_e5m2()));
    }
    if (config_.combine() == CombineKind::kLastCta) expect_counted(tiles);
    if (opener_combines_) expect_flags_taken_back(tiles);
  }

 private:
  // A tile, or a split of one, and its sequence.
  struct Work {
    int m_block;
    QueryRows queries;
    KeyRows keys;
    KvBlocks blocks{0, kAllBlocks};  // of a split
    int partial = TileSplit::kNotSplit;
    CombineTile combine{};  // of kernels that combine splits themselves
    int first_list = 0;     // of a sequence's, under a block mask
    bool opens = false;     // a tile whose later splits are added to this one
  };

  void run() {
    const int warps = config_.threads() / kWarpSize;
    const dim3 grid{launch_.blocks, 1, 1};
    const auto body = [this] { kernel_.kernel(launch_.params); };
    if (trial_.order.empty()) {
      outcome_ = machine::run_ctas(setting(), warps, {.grid = grid, .count = ctas_}, body);
      return;
    }
    outcome_ = {};
    outcome_.products.resize(size_t(ctas_ * warps));
    for (int cta : trial_.order) {
      machine::Setting alone = setting();
      alone.stored_before = {outcome_.stored.begin(), outcome_.stored.end()};
      const machine::Outcome own =
          machine::run_ctas(alone, warps, {.grid = grid, .first = cta}, body);
      outcome_.error = own.error;
      if (!own.error.empty()) return;
      outcome_.stored.insert(outcome_.stored.end(), own.stored.begin(), own.stored.end());
      std::ranges::copy(own.products, outcome_.products.begin() + ptrdiff_t(cta) * warps);
    }
  }

  void expect_products(const std::vector<Work>& tiles, int cta) const {
    for (int warp = 0; warp < config_.consumer_warps(); ++warp) {
      std::vector<Product> expected;
      for (const Work& work : tiles) add_expected(work, warp, &expected);
      const int number = cta * config_.threads() / kWarpSize + first_consumer() + warp;
      const std::vector<Product>& all = outcome_.products[size_t(number)];
      std::vector<Product> scores, outputs;
      for (const Product& p : all) (p.scores() ? scores : outputs).push_back(p);
      ASSERT_EQ(scores.size(), outputs.size()) << "warp " << warp;
      for (size_t i = 0; i < scores.size() && !config_.dequantizes(); ++i) {
        ASSERT_EQ(extent(scores[i]), extent_of(&k_, config_.block_n, config_.head_dim));
        ASSERT_EQ(extent(outputs[i]), extent_of(&v_, config_.head_dim_v, config_.block_n));
        ASSERT_EQ(key_block(scores[i]), value_block(outputs[i]))
            << "warp " << warp << " step " << i;
      }
      ASSERT_EQ(scores.size(), expected.size()) << "warp " << warp;
      for (size_t i = 0; i < expected.size(); ++i) {
        if (config_.dequantizes()) break;
        ASSERT_EQ(place(scores[i]), place(expected[i])) << "warp " << warp << " step " << i;
      }
      if (config_.dequantizes()) expect_filled_in_order(tiles, warp, expected, scores, outputs);
    }
  }

  bool is_e5m2() const { return (trial_.seed + unsigned(trial_.shape.heads)) % 2 == 1; }

  uint64_t counted(int splits) const {
    return launch_.params.counts.launch << SplitCounters::kBits | unsigned(splits);
  }
  // Every second time the CTAs that share tiles with this one are done already; else the
  // workspace holds what it held.
  void prepare_counts() {
    if (trial_.seed % 2 == 0) return;
    for (const Work& work : work_of_cta(0)) {
      if (work.partial == TileSplit::kNotSplit) continue;
      launch_.params.counts.cells[work.combine.later_partials] =
          counted(work.combine.num_splits - 1);
    }
  }
  // CTA 0's splits are counted, once each. Whoever counts the last one combines, and leaves
  // zero.
  void expect_counted(const std::vector<Work>& tiles) const {
    const bool last = trial_.seed % 2 == 1;
    for (const Work& work : tiles) {
      if (work.partial == TileSplit::kNotSplit) continue;
      ASSERT_GT(work.combine.num_splits, 1);
      ASSERT_EQ(launch_.params.counts.cells[work.combine.later_partials], counted(last ? 0 : 1));
    }
  }

  // The opener has waited for each warp that has rows.
  void expect_flags_taken_back(const std::vector<Work>& tiles) const {
    for (const Work& work : tiles) {
      if (work.partial == TileSplit::kNotSplit || work.opens) continue;
      for (int warp = 0; warp < config_.consumer_warps(); ++warp) {
        if (num_blocks_of(work, warp / kWarpsPerWarpgroup) == 0) continue;
        const int cell = work.partial * config_.consumer_warps() + warp;
        ASSERT_EQ(launch_.params.counts.cells[cell], counted(0)) << "warp " << warp;
      }
    }
  }

  // What threads have written is known by how often it was filled alone: K of block b of the stream
  // is the (2 b - 1)-th tile in the pipeline, V the (2 b + 2)-th; K of the first is before all, V
  // of the last behind.
  void expect_filled_in_order(const std::vector<Work>& tiles, int warp,
                              const std::vector<Product>& expected,
                              const std::vector<Product>& scores,
                              const std::vector<Product>& outputs) const {
    int all = 0;
    for (const Work& work : tiles) all += most_blocks_of(work);
    size_t i = 0;
    int before = 0;
    for (const Work& work : tiles) {
      const int in_tile = most_blocks_of(work);
      for (int left = num_blocks_of(work, warp / 4); left > 0; --left, ++i) {
        const int block = before + in_tile - left;
        const int k = block == 0 ? 0 : 2 * block - 1;
        const int v = block == all - 1 ? 2 * block + 1 : 2 * block + 2;
        ASSERT_EQ(place(scores[i])[0], place(expected[i])[0]) << "warp " << warp << " step " << i;
        ASSERT_EQ(scores[i].b.filling, k / config_.kv_stages + 1)
            << "warp " << warp << " step " << i;
        ASSERT_EQ(outputs[i].b.filling, v / config_.kv_stages + 1)
            << "warp " << warp << " step " << i;
      }
      before += in_tile;
    }
  }
  int most_blocks_of(const Work& work) const {
    int most = 0;
    for (int w = 0; w < config_.consumers(); ++w) most = std::max(most, num_blocks_of(work, w));
    return most;
  }

  // Sequences of their own lengths have lists where their entries are.
  int list_of(const Work& work) const {
    const cuda::BlockLists& lists = launch_.params.lists;
    return trial_.shape.varlen()
               ? lists.number(0, work.queries.pack, work.first_list + work.m_block)
               : lists.number(work.queries.batch, work.queries.pack, work.m_block);
  }

  static TensorSpan span(void* data, int rows, int heads, int columns, int batches) {
    return {data,   batches, rows, heads, columns, int64_t{rows} * heads * columns, heads * columns,
            columns};
  }
  TensorSpan span(void* data, int rows, int heads, int columns) const {
    return span(data, rows, heads, columns, trial_.shape.entries());
  }
  // V^T has a row for each column, all of whose keys lie side by side.
  void give_scales_and_transpose(ForwardCall* a, LaunchOperands* operands) {
    const Shape& s = trial_.shape;
    if (!config_.transposes_v) a->v = {&v_, s.batches, config_.head_dim_v, s.kv_heads, s.seqlen_k};
    scales_.assign(size_t(s.batches) * size_t(s.kv_heads), 1.0f);
    operands->e4m3 = {.keys = &key_scales_,
                      .value_scales = scales_.data(),
                      .sequences = s.batches,
                      .kv_heads = s.kv_heads,
                      .blocks = s.seqlen_k / FA3_DESCALE_ROWS + 1};
    if (!trial_.heads_in_work) return;
    parts_done_.assign(scales_.size(), kParts);
    operands->heads_in_work = {parts_done_.data(), kParts};
  }
  // V^T and scales of keys are made by the kernel before.
  const int* counter_of(const machine::Content& read) const {
    const E4m3Params& e4m3 = launch_.params.e4m3;
    if (read.tensor == &v_) return &parts_done_[size_t(e4m3.head_at(read.batch, read.head))];
    const auto* const scales = static_cast<const KeyScales*>(read.tensor);
    const ptrdiff_t head = (scales - e4m3.keys) / e4m3.blocks;
    return scales >= e4m3.keys && size_t(head) < parts_done_.size() ? &parts_done_[size_t(head)]
                                                                    : nullptr;
  }
  // As plan_e4m3.cpp and prepare_e4m3.cu do.
  void follow_preparation(ForwardPlan* plan) {
    plan->pdl = plan->tiling.scheduler != Scheduler::kVarlenMetadata;
    if (plan->tiling.scheduler != Scheduler::kDynamicPersistent) return;
    *reinterpret_cast<int*>(workspace_.data() + plan->workspace.tile_counter) = 0;
  }
  int64_t lse_count() const {
    return int64_t{trial_.shape.entries()} * trial_.shape.heads * trial_.shape.q_rows();
  }

  machine::Setting setting() const {
    machine::Setting setting{.seed = trial_.seed,
                             .neighbours = config_.ctas_per_sm,
                             .pace = trial_.pace,
                             .fault = trial_.fault,
                             .barrier = trial_.barrier};
    setting.pdl = launch_.pdl;
    if (trial_.heads_in_work) {
      setting.counter_of = [this](const machine::Content& read) { return counter_of(read); };
      setting.made = kParts;
    }
    setting.kv = kernel_.kv_pipeline;
    setting.buffers = kernel_.buffers;
    const Shape& s = trial_.shape;
    const int64_t in_pages = int64_t{s.batches} * s.page_size * s.num_pages();
    const int64_t rows = s.page_size > 0 ? in_pages : int64_t{s.entries()} * s.k_rows();
    const int64_t rows_of_entry = s.page_size > 0 ? in_pages : s.k_rows();
    setting.tensors = {{&k_, kAddressOfK, rows, s.kv_heads, config_.head_dim, 2, rows_of_entry},
                       {&v_, kAddressOfV, rows, s.kv_heads, config_.head_dim_v, 2, rows_of_entry}};
    const bool plain = !trial_.shape.varlen() && !trial_.shape.finds_own_tiles();
    setting.infinite = [this, plain, seed = trial_.seed](const Product& p) {
      return plain && p.scores() && p.b.row == 0 &&
             is_extreme(seed, p.a.row / config_.block_m, p.a.head, p.a.batch);
    };
    setting.peaked = [this, seed = trial_.seed](const Product& p) {
      return consumer_tuning(config_).tracks_max && p.scores() &&
             is_peaked(seed, p.a.row / config_.block_m, p.a.head, p.a.batch);
    };
    return setting;
  }

  // The tiles that CTA 0 drew, or that were dealt to it.
  std::vector<int> my_tiles() const {
    const hopper::ForwardParams& params = launch_.params;
    const int all =
        params.sequences ? *params.num_entries * params.order.num_packs : params.order.num_tiles();
    const int blocks = int(launch_.blocks);
    std::vector<int> tiles = {0};
    if (launch_.params.tile_counter != nullptr) {
      for (int ticket : outcome_.drawn) tiles.push_back(ticket + blocks);
    } else {
      for (int tile = blocks; tile < all; tile += blocks) tiles.push_back(tile);
    }
    std::erase_if(tiles, [all](int tile) { return tile >= all; });
    return tiles;
  }

  // What CTA 0 computes, or one among all.
  std::vector<Work> work_of_cta(int cta) const {
    std::vector<Work> all;
    const ForwardParams& params = launch_.params;
    if (!trial_.shape.finds_own_tiles()) {
      for (int tile : my_tiles()) all.push_back(work_of(tile));
      return all;
    }
    const int blocks = int(launch_.blocks);
    const SplitKvSchedule& schedule = params.schedule;
    SequenceSmem memory;
    // Who is waited for comes first.
    const int range = opener_combines_ ? blocks - 1 - cta : cta;
    SplitIterator splits(schedule, SequenceWindow(schedule, memory.entries), range, blocks);
    while (!splits.done()) {
      SequenceTiles s;
      TileSplit split;
      if (!splits.next(s, split)) continue;
      s.queries.pack = split.pack;
      all.push_back({split.m_block, s.queries, s.keys, split.blocks, split.partial});
      if (trial_.shape.scheduler == Scheduler::kStreamK)
        all.back().combine = splits.combine_tile_of_range(split);
      all.back().opens = opener_combines_ && splits.later_splits(split) > 0;
    }
    return all;
  }
  Work work_of(int tile) const {
    const Shape& s = trial_.shape;
    const ForwardParams& params = launch_.params;
    if (params.sequences) {
      SequenceTiles sequence = params.sequences[tile / params.order.num_packs];
      const TileIndex index =
          sequence.order.tile(tile - sequence.first_entry * params.order.num_packs);
      sequence.queries.pack = index.pack;
      Work work{index.m_block, sequence.queries, sequence.keys};
      work.first_list = sequence.first_entry;
      if (config_.block_mask) work.m_block = params.lists.lengths[list_of(work)].nth;
      return work;
    }
    TileIndex index = params.order.tile(tile);
    if (config_.block_mask) {
      index.m_block = params.lists.ranked(index.batch, index.pack, index.m_block);
    }
    return {index.m_block,
            {index.batch, index.pack, 0, s.seqlen_q, s.seqlen_q},
            {index.batch, 0, s.seqlen_k}};
  }

  // The first key that a tile sees, in its sequence.
  int first_key_of(const Work& work) const {
    const int first_row = work.m_block * config_.block_m;
    if (trial_.shape.finds_own_tiles()) return work.blocks.first * config_.block_n;
    int first_key = trial_.shape.mask.keys_of(first_row, work.queries.used, work.keys.count).begin;
    if (config_.e4m3) first_key = std::min(first_key, work.keys.count);
    const bool whole_blocks = trial_.shape.page_size > 0 || config_.e4m3 || config_.dropout;
    return whole_blocks ? first_key / config_.block_n * config_.block_n : first_key;
  }

  int num_blocks_of(const Work& work, int warpgroup) const {
    const int first_row = work.m_block * config_.block_m + warpgroup * kRowsPerWarpgroup;
    if (first_row >= work.queries.count) return 0;
    if (config_.block_mask) return launch_.params.lists.lengths[list_of(work)].count;
    if (first_row >= work.queries.used) return 1;
    const int end = std::min(first_row + kRowsPerWarpgroup, work.queries.used);
    const auto range =
        block_range(trial_.shape.mask, first_row, end, work.queries.used, work.keys.count);
    return std::min(visited_blocks(range.from(first_key_of(work)), config_.block_n).end,
                    work.blocks.count);
  }

  void add_expected(const Work& work, int warp, std::vector<Product>* expected) const {
    const int num_blocks = num_blocks_of(work, warp / 4);
    for (int block = num_blocks - 1; block >= 0; --block) {
      int key = first_key_of(work) + block * config_.block_n;
      if (config_.block_mask) {
        key = launch_.params.lists.blocks_of(list_of(work))[block].block * config_.block_n;
      }
      expected->push_back(
          {.a = {.tensor = &q_,
                 .row = work.queries.begin + work.m_block * config_.block_m + warp * kRowsPerWarp,
                 .head = work.queries.pack,
                 .batch = work.queries.batch},
           .b = {.tensor = &k_,
                 .row = first_row_of(work.keys) + key,
                 .head = work.queries.pack / (trial_.shape.heads / trial_.shape.kv_heads),
                 .batch = trial_.shape.page_size > 0 ? 0 : work.keys.batch}});
    }
  }
  // Pages follow each other in one long tensor here.
  int first_row_of(const KeyRows& keys) const {
    const Shape& s = trial_.shape;
    return s.page_size > 0 ? keys.batch * s.num_pages() * s.page_size : keys.begin;
  }

  // Lane 0 writes O and the LSE of its first row and of the row 8 below.
  void expect_rows_written(const std::vector<Work>& tiles) const {
    const Shape& s = trial_.shape;
    constexpr int kColumnsApart = 32;  // of a lane's stores
    constexpr int kPieceColumnsApart = 8;
    std::set<const void*> expected;
    for (const Work& work : tiles) {
      const auto& [batch, head, begin, count, used] = work.queries;
      const bool extreme = is_extreme(trial_.seed, work.m_block, head, batch);
      const int end = std::min(count, (work.m_block + 1) * config_.block_m);
      for (int row = work.m_block * config_.block_m; row < end; ++row) {
        if (row % kRowsPerWarp % kRowDistance != 0) continue;
        if (work.partial != TileSplit::kNotSplit && !work.opens) {
          const PartialOutput& to = launch_.params.partials;
          const int64_t partial_row = to.row(work.partial, row % config_.block_m);
          ASSERT_FALSE(std::isnan(to.lse[partial_row])) << "row " << row << " of a split";
          for (int column = 0; column < to.columns; column += kPieceColumnsApart) {
            expected.insert(&to.o[partial_row * to.columns + column]);
          }
          continue;
        }
        const int64_t at = (int64_t{batch} * s.heads + head) * s.q_rows() + begin + row;
        ASSERT_TRUE(extreme || !std::isnan(lse_[size_t(at)])) << "row " << row << " not written";
        if (work.opens) expect_all_keys_counted(work, row, lse_[size_t(at)]);
        if (consumer_tuning(config_).stages_rows) continue;
        const int64_t o_row = (int64_t{batch} * s.q_rows() + begin + row) * s.heads + head;
        for (int column = 0; column < config_.head_dim_v; column += kColumnsApart) {
          expected.insert(
              &o_[size_t(o_row * config_.head_dim_v + column) * bytes_of(config_.element)]);
        }
      }
    }
    ASSERT_EQ(std::set<const void*>(outcome_.stored.begin(), outcome_.stored.end()), expected);
    if (consumer_tuning(config_).stages_rows) expect_rows_sent(tiles);
  }

  // Scores are zero, so the log-sum-exp is the logarithm of how many keys all splits have counted;
  // where a mask ends within eight keys, lane 0 stands for others that see one more or less.
  void expect_all_keys_counted(const Work& work, int row, float lse) const {
    constexpr float kTolerance = 8;
    const int seen =
        std::max(0, trial_.shape.mask.keys_of(row, work.queries.used, work.keys.count).end);
    ASSERT_NEAR(std::exp(lse), float(seen), kTolerance) << "row " << row;
  }

  // Where rows leave through shared memory: each warp's once, slab by slab or all together.
  void expect_rows_sent(const std::vector<Work>& tiles) const {
    using Sent = std::tuple<int, int, int, int, int, int>;
    const tile::TileLayout rows = config_.tiles().staged_o;
    const bool together = launch_.params.o_slabs_together;
    std::multiset<Sent> expected, sent;
    for (const Work& work : tiles) {
      const auto& [batch, head, begin, count, used] = work.queries;
      for (int warp = 0; warp < config_.consumer_warps(); ++warp) {
        const int row = work.m_block * config_.block_m + warp * kRowsPerWarp;
        if (row >= count) continue;
        for (int slab = 0; slab < (together ? 1 : rows.slabs()); ++slab) {
          expected.emplace(first_consumer() + warp, begin + row, slab * rows.slab_columns(), head,
                           batch, together ? rows.bytes() : rows.slab_bytes());
        }
      }
    }
    for (const machine::Departure& d : outcome_.departures) {
      ASSERT_EQ(d.to, o_.data());
      sent.emplace(d.warp, d.row, d.column, d.head, d.batch, d.bytes);
    }
    ASSERT_EQ(sent, expected);
  }

  // Where threads find keys and values in pages.
  static constexpr uintptr_t kAddressOfK = uintptr_t{1} << 40, kAddressOfV = uintptr_t{2} << 40;

  int first_consumer() const { return config_.threads() / kWarpSize - config_.consumer_warps(); }

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
  // In K's places: transposed values lie by sequence.
  std::tuple<int, int, int> value_block(const Product& p) const {
    if (!config_.e4m3) return key_block(p);
    const int32_t* begins = trial_.shape.cu_k;
    if (begins == nullptr) return {p.b.column, p.b.head, p.b.batch};
    return {begins[p.b.batch] + p.b.column, p.b.head, 0};
  }
  using Extent = std::tuple<const void*, int, int, int>;
  // Where the sum of outputs begins is value_block()'s.
  Extent extent(const Product& p) const {
    const int column = config_.e4m3 && !p.scores() ? p.b.row : p.b.column;
    return {p.b.tensor, column, p.columns, p.depth};
  }
  static Extent extent_of(const void* tensor, int columns, int depth) {
    return {tensor, 0, columns, depth};
  }

  const KernelOnTrial& kernel_;
  const ForwardConfig& config_ = kernel_.config;
  Trial trial_;
  char q_ = 0, k_ = 0, v_ = 0;  // stand for tensors
  std::vector<unsigned char> o_;
  std::vector<float> lse_;
  std::vector<float> scales_;  // of e4m3 values
  static constexpr int kParts = 3;
  std::vector<int> parts_done_;  // of heads
  KeyScales key_scales_{};       // stands for all
  std::vector<unsigned char> workspace_;
  std::vector<int32_t> pages_;
  RandomMap map_;
  struct Launch {
    unsigned blocks;
    ForwardParams params;
    bool pdl;
  };
  Launch launch_;
  bool opener_combines_ = false;
  int ctas_ = 1;  // that run: the first of the grid
  machine::Outcome outcome_;
};

}  // namespace fa3::hopper
