// SPDX-License-Identifier: Apache-2.0
//
// The backward's main kernel on the machine: planned and launched as in the library, then compared
// with what every warp should have multiplied, added and stored.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/launch/launch_backward.h"
#include "host_runtime.h"
#include "machine.h"
#include "random_map.h"
#include "shape.h"

namespace fa3::hopper {

using machine::Departure;
using machine::Fault;
using machine::Outcome;
using machine::Product;

// One launch on the machine, CTA by CTA, or pair by pair.
template <BackwardConfig C>
class BackwardRun {
  // A product: A's tensor (null: registers or dS), row, filling, sender; B's tensor, row, column,
  // head, batch; columns and depth; whether it adds.
  using Step =
      std::tuple<const void*, int, int, int, const void*, int, int, int, int, int, int, bool>;
  using Left = std::tuple<int, const void*, int, int, int, int, int, bool>;

  // A key block, of a pair both and which of them is this CTA's; its split of the query heads, and
  // its sequence.
  struct Work {
    bool exists;
    int n_block;
    int kv_head;
    QueryRows keys;
    KeyRows queries;
    ScratchPlace scratch;
    int head_split = 0;
    int sequence = 0;
    int rank = 0;

    int first_key() const { return n_block * C.keys_of_cluster() + rank * C.block_n; }
    Work of_other() const {
      Work other = *this;
      other.rank ^= 1;
      return other;
    }
    // Where the row of a tile of keys lies in its tensor.
    int key_row(int row) const { return keys.begin + first_key() + row; }
  };

 public:
  static constexpr int kPlannedSms = C.persistent ? 2 : 132;

  explicit BackwardRun(const Shape& s, bool deterministic = false) : shape_(s) {
    BackwardCall a;
    a.q = span(&q_, s.q_rows(), s.heads, C.head_dim);
    a.k = span(&k_, s.k_rows(), s.kv_heads, C.head_dim);
    a.v = span(&v_, s.k_rows(), s.kv_heads, C.head_dim_v);
    a.o = a.d_o = span(&d_o_, s.q_rows(), s.heads, C.head_dim_v);
    a.dq = span(&dq_, s.q_rows(), s.heads, C.head_dim);
    a.dk = span(&dk_, s.k_rows(), s.kv_heads, C.head_dim);
    a.dv = span(&dv_, s.k_rows(), s.kv_heads, C.head_dim_v);
    a.scale = a.gradient_scale = 1;
    a.deterministic = deterministic;
    a.mask = s.mask;
    a.seqlen_q = s.seqlen_q;
    a.seqlen_k = s.seqlen_k;
    a.varlen = s.varlen();
    a.sequences = s.batches;
    a.lengths_q = s.lengths_q();
    a.lengths_k = s.lengths_k();
    if (C.block_mask) a.block_mask = mask_ = map_.make(s, 1);
    machine::on_launch = [this](const void* function, dim3 grid, const void* params, bool) {
      if (function != &main_ && function != &main_head_splits_) return;
      tiles_ = int(grid.x);
      params_ = *static_cast<const BackwardParamsOf<C>*>(params);
    };
    const BackwardKernel kernel{
        C,      &pre_, &main_, &post_, backward_smem_bytes<C>(), &main_, &main_head_splits_,
        &post_, &post_};
    const BackwardPlan plan = plan_launches(kernel, a, kPlannedSms);
    workspace_.resize(size_t(plan.workspace.bytes));
    EXPECT_EQ(launch_backward(plan, workspace_.data(), nullptr), cudaSuccess);
  }

  int tiles() const { return tiles_; }
  int head_splits() const { return params_.order.head_splits; }

  // Of a pair: both CTAs.
  Outcome run(int tile, machine::Setting setting) const {
    setting.buffers = buffers();
    if constexpr (C.pairs()) {
      const BackwardAddresses<C> at{machine::kSmemBase};
      for (uint32_t i = 0; i < C.ds_stages; ++i) {
        setting.expect_ahead.push_back(at.pair_pipeline().full(i));
      }
    }
    if (C.persistent) *params_.scratch.dq_semaphore = 0;
    const Work at = work_of(tile);
    if (has_order() && at.exists) {
      for (const QueryBlock& b : blocks_of(at)) *counter_of(at, b) = dq_order(at, b);
    }
    const machine::Ctas ctas{.grid = {unsigned(tiles_), 1, 1},
                             .first = first_of(tile),
                             .count = C.ctas(),
                             .cluster = C.ctas()};
    return machine::run_ctas(setting, kWarps, ctas, [this] {
      if constexpr (C.can_split_heads()) {
        if (params_.order.head_splits > 1) return backward_kernel<C.with_head_splits()>(params_);
      }
      backward_kernel<C>(params_);
    });
  }

  void expect_all_work_done(int tile, const Outcome& outcome) const {
    ASSERT_EQ(outcome.error, "");
    std::vector<Left> expected;
    for (int cta = 0; cta < C.ctas(); ++cta) {
      const std::vector<Work> works = works_of(first_of(tile) + cta, outcome);
      for (int warp = 0; warp < kWarps; ++warp) {
        const int warpgroup = warp / kWarpsPerWarpgroup;
        std::vector<Step> steps;  // helpers multiply nothing
        if (warpgroup == int(BackwardWarpgroup::kQuery)) steps = query_steps_of(works);
        if (warpgroup == 1 || warpgroup == 2) {
          for (const Work& at : works) add_key_steps(steps, at, blocks_of(at), warp - 4);
        }
        std::vector<Step> made;
        for (const Product& p : outcome.products[size_t(cta * kWarps + warp)]) {
          made.push_back(step_of(p));
        }
        ASSERT_EQ(made, steps) << "CTA " << cta << ", warp " << warp;
      }
      for (const Work& at : works) add_departures_of(expected, at, blocks_of(at));
    }
    std::vector<Left> left;
    for (const Departure& d : outcome.departures) {
      left.push_back({d.warp, d.to, d.row, d.rows, d.column, d.head, d.batch, d.adds});
    }
    std::sort(left.begin(), left.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(left, expected);
    const std::set<const void*> stored(outcome.stored.begin(), outcome.stored.end());
    ASSERT_EQ(stored.size(), outcome.stored.size()) << "stored twice";
    if (C.wide && work_of(tile).exists) {
      ASSERT_EQ(stored, wide_rows_of(work_of(tile)));
    }
    if (has_order()) {
      ASSERT_EQ(broken_order(tile, outcome), "");
    }
  }

  // The counter must have come to these CTAs; then each adds everything, then it counts on.
  std::string broken_order(int tile, const Outcome& outcome) const {
    std::string broken;
    for (int cta = 0; cta < C.ctas() && broken.empty(); ++cta) {
      broken = broken_order_of_cta(cta, work_of(tile), outcome);
    }
    return broken;
  }

 private:
  static constexpr int kWarps = C.threads() / kWarpSize;

  std::string broken_order_of_cta(int cta, const Work& at, const Outcome& outcome) const {
    if (!at.exists) return "";
    for (const QueryBlock& b : blocks_of(at)) {
      const int* const counter = counter_of(at, b);
      const int before = dq_order(at, b);
      size_t begin = outcome.departures.size(), end = begin;
      int counted = 0;
      for (const machine::SemaphoreUse& use : outcome.semaphore_uses) {
        if (use.counter != counter || use.cta != cta) continue;
        if (!use.adds && use.value >= before) begin = std::min(begin, use.departures);
        if (use.adds) end = use.departures, counted += use.value;
      }
      if (counted != 1) return "a semaphore counted on by " + std::to_string(counted);
      const float* const dq_block = dq_block_of(at, b);
      for (size_t i = 0; i < outcome.departures.size(); ++i) {
        const machine::Departure& departure = outcome.departures[i];
        const auto* const to = static_cast<const float*>(departure.to);
        const bool adds = departure.adds && departure.warp / kWarps == cta && to >= dq_block &&
                          to < dq_block + C.dq_accum().block_floats();
        if (adds && (i < begin || i >= end)) return "an addition out of order";
      }
    }
    return "";
  }

  static int first_of(int tile) { return tile - tile % C.ctas(); }

  // Of additions to dQ. Persistent CTAs draw tiles from the first counter.
  bool has_order() const { return params_.scratch.dq_semaphore && !C.persistent; }

  // What a CTA does, one after the other. Others have drawn, too.
  std::vector<Work> works_of(int cta, const Outcome& outcome) const {
    const Work first = work_of(cta);
    if (!first.exists) return {};
    std::vector<Work> works{first};
    for (const int drawn : outcome.drawn) {
      if (tiles_ + drawn < params_.order.num_tiles()) works.push_back(work_of(tiles_ + drawn));
    }
    return works;
  }

  Work work_of(int tile) const {
    Work at = work_of_cluster(tile / C.ctas());
    at.rank = tile % C.ctas();
    return at;
  }
  Work work_of_cluster(int tile) const {
    const Shape& s = shape_;
    if (!s.varlen()) {
      KeyBlockIndex at = params_.order.at(tile);
      if (C.block_mask && !has_order()) {  // the longest list first
        const int head = at.kv_head * (s.heads / s.kv_heads);
        at.n_block = params_.lists.ranked(at.batch, head, params_.lists.num_lists - 1 - at.n_block);
      }
      return {true,
              at.n_block,
              at.kv_head,
              {at.batch, 0, 0, s.seqlen_k, s.seqlen_k},
              {at.batch, 0, s.seqlen_q},
              {at.batch, 0},
              at.head_split,
              at.batch};
    }
    const int entry = tile / s.kv_heads;
    if (entry >= *params_.varlen.num_entries) return {};
    const SequenceTiles& sequence = params_.varlen.sequences[entry];
    const TileIndex index = sequence.order.tile(tile - sequence.first_entry * s.kv_heads);
    return {true,
            block_of(sequence, index),
            index.pack,
            sequence.queries,
            sequence.keys,
            s.packed() ? ScratchPlace::of_packed(sequence.number, sequence.keys.begin, C.block_m)
                       : ScratchPlace{sequence.keys.batch, 0},
            0,
            sequence.number};
  }
  // Under a block mask the longest list of the sequence comes first, unless additions have an
  // order.
  int block_of(const SequenceTiles& sequence, const TileIndex& index) const {
    if (C.block_mask && !has_order()) {
      const int head = index.pack * (shape_.heads / shape_.kv_heads);
      const int list = sequence.first_entry + index.m_block;
      return params_.lists.lengths[params_.lists.number(0, head, list)].nth;
    }
    return params_.order.last_keys_first && !C.block_mask
               ? index.m_block
               : sequence.order.num_m_blocks - 1 - index.m_block;
  }

  static Step step_of(const Product& p) {
    return {p.a.tensor,
            p.a_in_registers ? 0 : p.a.row,
            p.a_in_registers ? 0 : p.a.filling,
            p.a.sender,
            p.b.tensor,
            p.b.row,
            p.b.column,
            p.b.head,
            p.b.batch,
            p.columns,
            p.depth,
            p.adds};
  }

  TensorSpan span(const void* data, int rows, int heads, int columns) const {
    return {const_cast<void*>(data),         shape_.entries(),         rows,   heads, columns,
            int64_t{rows} * heads * columns, int64_t{heads} * columns, columns};
  }

  static std::vector<machine::Buffer> buffers() {
    const BackwardAddresses<C> at{machine::kSmemBase};
    std::vector<machine::Buffer> all;
    for (int i = 0; i < C.stages; ++i) {
      all.push_back({"LSE", at.lse(uint32_t(i)), int(C.block_m * sizeof(float))});
      all.push_back({"Delta", at.delta(uint32_t(i)), int(C.block_m * sizeof(float))});
    }
    for (int i = 0; i < C.ds_stages; ++i) {
      // Of a persistent CTA a warpgroup's dV and dK take the halves of its slab, by queries.
      const int parts = C.persistent ? 2 * C.key_warpgroups() : 1;
      const int bytes = C.ds_tile().bytes() / parts;
      for (int part = 0; part < parts; ++part) {
        machine::Buffer ds{"dS", at.ds(uint32_t(i)) + uint32_t(part * bytes), bytes};
        if (C.p_lies_in_ds()) ds.strips = kWarpsPerWarpgroup;
        all.push_back(ds);
      }
    }
    for (int i = 0; i < C.ds_stages && C.splits_dkv() && !C.p_lies_in_ds(); ++i) {
      all.push_back({"P", at.p(uint32_t(i)), C.p_bytes()});
    }
    constexpr int kWarpBytes = kWarpSize * 16;  // each thread keeps 16 bytes of a row for itself
    for (int w = 0; w < C.key_warpgroups() && C.keeps_p(); ++w) {
      for (int row = 0; row < C.p_bytes(); row += kWarpBytes) {
        all.push_back({"P times the derivative", at.p(uint32_t(w)) + row, kWarpBytes});
      }
    }
    if constexpr (C.dropout) {
      constexpr int kDraws = sizeof(DropoutBits<C>::bits[0][0]);
      for (int w = 0; w < (C.splits_dkv() ? 1 : C.key_warpgroups()); ++w) {
        for (uint32_t turn : {0, 1})
          all.push_back({"draws", at.dropout_bits(w) + turn * kDraws, kDraws});
      }
    }
    if constexpr (C.persistent) {
      for (uint32_t lap = 0; lap < DrawnTiles::kLaps; ++lap) {
        all.push_back({"a drawn tile", at.drawn_tile(lap), int(sizeof(DrawnTiles::Tile))});
      }
    } else {
      add_gradients(all, at);
    }
    return all;
  }

  // Where dK and dV lie at the end. Each warpgroup of 64 keys has dV in its rows of V, slab by
  // slab.
  static void add_gradients(std::vector<machine::Buffer>& all, BackwardAddresses<C> at) {
    constexpr int kDkBytes = kRowsPerWarpgroup * C.head_dim * bytes_of(C.element),
                  kDvBytes = kRowsPerWarpgroup * C.head_dim_v * bytes_of(C.element);
    for (int w = 0; w < C.key_warpgroups() && C.splits_dkv(); ++w) {
      all.push_back({"dK", at.q(uint32_t(w)), kDkBytes});
      all.push_back({"dV", at.d_o(uint32_t(w)), kDvBytes});
    }
    if (C.splits_dkv()) return;
    for (int stage = 0; stage < C.stages; ++stage) {
      all.push_back({"dK", at.q(uint32_t(stage)), kDkBytes});
    }
    for (int stage = 0; stage < C.d_o_stages(); ++stage) {
      all.push_back({"dK", at.d_o(uint32_t(stage)), kDkBytes});
    }
    const int rows = kRowsPerWarpgroup * C.v_tile().row_bytes();
    for (int w = 0; w < C.key_warpgroups(); ++w) {
      for (int slab = 0; slab < C.v_tile().slabs(); ++slab) {
        all.push_back({"dV", at.v() + slab * C.v_tile().slab_bytes() + w * rows, rows});
      }
    }
  }

  // By the mask rule, not by query_steps(): head after head, the blocks with a query that sees a
  // key.
  std::vector<QueryBlock> blocks_of(const Work& at) const {
    const int group = shape_.heads / shape_.kv_heads, heads = group / params_.order.head_splits;
    const int first_head = at.kv_head * group + at.head_split * heads,
              first_key = at.n_block * C.keys_of_cluster();
    std::vector<QueryBlock> blocks;
    for (int head = first_head; head < first_head + heads; ++head) {
      for (int m = 0; m * C.block_m < at.queries.count; ++m) {
        bool sees = sees_keys(at, m, first_key, C.keys_of_cluster());
        if (C.block_mask) {
          const int32_t* const row = mask_.row_of(at.sequence, head, m * C.block_m / kMaskBlock);
          sees = row[at.n_block] != kHiddenBlock && block_holds(at, m * C.block_m / kMaskBlock);
        }
        if (sees) blocks.push_back({head, m});
      }
    }
    return blocks;
  }

  bool sees_keys(const Work& at, int m_block, int first_key, int num_keys) const {
    const int end = std::min((m_block + 1) * C.block_m, at.queries.count);
    for (int query = m_block * C.block_m; query < end; ++query) {
      const KeyRangeOf<int> keys = shape_.mask.keys_of(query, at.queries.count, at.keys.used);
      if (std::max(keys.begin, first_key) < std::min(keys.end, first_key + num_keys)) return true;
    }
    return false;
  }

  // Whether a query of a block of the mask sees a key by the rule beside it.
  bool block_holds(const Work& at, int query_block) const {
    constexpr int kSteps = kMaskBlock / C.block_m;
    for (int m = query_block * kSteps; m < (query_block + 1) * kSteps; ++m) {
      if (sees_keys(at, m, at.n_block * C.block_n, C.block_n)) return true;
    }
    return false;
  }

  // Those that a warpgroup of dK and dV multiplies. Where some of them see its keys, general
  // kernels leave out the first and the last one if it does not.
  std::vector<QueryBlock> multiplied_blocks(const Work& at, std::vector<QueryBlock> blocks,
                                            int warpgroup) const {
    if (!C.leaves_out_steps()) return blocks;
    const int first_key = at.n_block * C.block_n + warpgroup * kRowsPerWarpgroup;
    const auto sees = [&](QueryBlock b) {
      return sees_keys(at, b.m_block, first_key, kRowsPerWarpgroup);
    };
    if (std::none_of(blocks.begin(), blocks.end(), sees)) return blocks;
    if (!sees(blocks.front())) blocks.erase(blocks.begin());
    if (!sees(blocks.back())) blocks.pop_back();
    return blocks;
  }

  int* counter_of(const Work& at, const QueryBlock& b) const {
    return params_.scratch.dq_semaphore +
           params_.scratch.numbers.block(at.scratch, b.head, b.m_block);
  }
  const float* dq_block_of(const Work& at, const QueryBlock& b) const {
    return params_.scratch.dq_accum + params_.scratch.numbers.block(at.scratch, b.head, b.m_block) *
                                          C.dq_accum().block_floats();
  }

  // How many CTAs add to a query block before: those of key blocks in front, or behind where the
  // last go first.
  int dq_order(const Work& at, const QueryBlock& b) const {
    const bool last_first = !C.block_mask && (C.general() || params_.extents.causal);
    int before = 0;
    for (int n = 0; n * C.keys_of_cluster() < at.keys.used; ++n) {
      if (last_first ? n <= at.n_block : n >= at.n_block) continue;
      Work other = at;
      other.n_block = n;
      for (const QueryBlock& theirs : blocks_of(other)) {
        if (theirs.head == b.head && theirs.m_block == b.m_block) before += C.ctas();
      }
    }
    return before;
  }

  void add_key_steps(std::vector<Step>& steps, const Work& at, const std::vector<QueryBlock>& all,
                     int warp) const {
    const std::vector<QueryBlock> blocks = multiplied_blocks(at, all, warp / kWarpsPerWarpgroup);
    const bool sums_dv = warp < kWarpsPerWarpgroup;  // where dK and dV are split
    const int row_of_warp = C.splits_dkv() ? warp % kWarpsPerWarpgroup : warp;
    const int keys = at.key_row(row_of_warp * kRowsPerWarp);
    const auto product = [&](const void* a, const void* b, QueryBlock block, int columns, int depth,
                             int first_column = 0) {
      return Step{a,
                  a == nullptr ? 0 : keys,
                  0,
                  0,
                  b,
                  at.queries.begin + block.m_block * C.block_m,
                  first_column,
                  block.head,
                  at.queries.batch,
                  columns,
                  depth,
                  a == nullptr};  // to sums
    };
    const auto s = [&](QueryBlock b) { return product(&k_, &q_, b, C.block_m, C.head_dim); };
    const auto dp = [&](QueryBlock b) { return product(&v_, &d_o_, b, C.block_m, C.head_dim_v); };
    const auto dv = [&](QueryBlock b) {
      return product(nullptr, &d_o_, b, C.head_dim_v, C.block_m);
    };
    const auto dk = [&](QueryBlock b) { return product(nullptr, &q_, b, C.head_dim, C.block_m); };
    for (size_t i = 0; i < blocks.size(); ++i) {
      const QueryBlock b = blocks[i];
      if (C.splits_dkv()) {
        steps.push_back(sums_dv ? s(b) : dp(b));
        const int columns = sums_dv ? C.head_dim_v : C.head_dim;
        const int at_once = columns == 256 ? 128 : columns;  // more do not fit the registers
        for (int first = 0; first < columns; first += at_once) {
          steps.push_back(product(nullptr, sums_dv ? &d_o_ : &q_, b, at_once, C.block_m, first));
        }
        continue;
      }
      if (i == 0) steps.push_back(s(b));
      steps.push_back(dp(b));
      steps.push_back(dv(b));
      if (i + 1 < blocks.size()) steps.push_back(s(blocks[i + 1]));
      steps.push_back(dk(b));
    }
  }

  // Where gradients leave through a stage of dS, they are a filling of it, too.
  std::vector<Step> query_steps_of(const std::vector<Work>& works) const {
    std::vector<Step> steps;
    std::vector<int> fillings(size_t(C.ds_stages), 0);
    size_t made = 0;
    for (const Work& at : works) {
      for (size_t i = 0; i < blocks_of(at).size(); ++i, ++made) {
        add_query_step(steps, at, ++fillings[made % fillings.size()]);
      }
      if (C.persistent) ++fillings[made % fillings.size()];
    }
    return steps;
  }

  void add_query_step(std::vector<Step>& steps, const Work& at, int filling) const {
    const AccumLayout parts = C.dq_accum();
    for (int part = first_part(at); part < first_part(at) + C.dq_parts(); ++part) {
      const auto add = [&](const Work& keys, int sender) {
        // Where P lies in dS's place, each dS is the second filling, P the first.
        steps.push_back({nullptr, 0, C.p_lies_in_ds() ? 2 * filling : filling, sender, &k_,
                         keys.key_row(0), parts.first_column(part), at.kv_head, at.keys.batch,
                         parts.columns(), C.block_n, sender > 0});
      };
      add(at, 0);
      if (C.pairs()) add(at.of_other(), at.of_other().rank + 1);
    }
  }
  // Of those of dQ that the CTA sums.
  static int first_part(const Work& at) { return at.rank * C.dq_parts(); }

  void add_departures_of(std::vector<Left>& all, const Work& at,
                         const std::vector<QueryBlock>& blocks) const {
    const int first_warp = at.rank * kWarps;
    const AccumLayout parts = C.dq_accum();
    for (const QueryBlock& b : blocks) {
      const float* const dq_block = dq_block_of(at, b);
      for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
        for (int part = first_part(at); part < first_part(at) + C.dq_parts(); ++part) {
          const int row = b.m_block * C.block_m + parts.first_row(part) + warp % 4 * kRowsPerWarp;
          if (C.general() && row >= at.queries.count) continue;  // past the sequence's rows
          for (int group = 0; group < parts.groups(); ++group) {
            all.push_back({first_warp + warp,
                           dq_block + parts.offset(part, group, warp * kWarpSize), 0, 0, 0, 0, 0,
                           true});
          }
        }
      }
    }
    for (int w = 0; w < C.sum_warpgroups(); ++w) {
      if (params_.order.head_splits > 1) {
        if (!blocks.empty()) add_to_sums(all, at, w);
        continue;
      }
      if (C.wide) continue;  // threads store
      const int warp = first_warp + (1 + w) * kWarpsPerWarpgroup;
      const int rows_of = C.splits_dkv() ? 0 : w;
      const int first = at.first_key() + rows_of * kRowsPerWarpgroup;
      const int key = at.keys.begin + first;
      // Dense maps leave out what lies past the tensor, clipped ones what the sequence does not
      // own.
      const int rows =
          C.general() ? std::clamp(at.keys.count - first, 0, kRowsPerWarpgroup) : kRowsPerWarpgroup;
      const bool stores_dk = !C.splits_dkv() || w == int(KeyGradient::kDk);
      const bool stores_dv = !C.splits_dkv() || w == int(KeyGradient::kDv);
      if (rows == 0) continue;
      for (int column = 0; stores_dk && column < C.head_dim; column += C.k_tile().slab_columns()) {
        all.push_back({warp, &dk_, key, rows, column, at.kv_head, at.keys.batch, false});
      }
      for (int column = 0; stores_dv && column < C.head_dim_v;
           column += C.v_tile().slab_columns()) {
        all.push_back({warp, &dv_, key, rows, column, at.kv_head, at.keys.batch, false});
      }
    }
  }

  // Where lanes 0 store gradients of the key block's rows in float32: their own, two of each
  // warp's.
  std::set<const void*> wide_rows_of(const Work& at) const {
    std::set<const void*> all;
    if (params_.order.head_splits > 1) return all;
    const int first = at.n_block * C.block_n;
    for (int row = first; row < std::min(first + C.block_n, at.keys.count); ++row) {
      if (row % kRowDistance != 0) continue;
      const int64_t place =
          (int64_t{at.keys.batch} * shape_.k_rows() + at.keys.begin + row) * shape_.kv_heads +
          at.kv_head;
      const auto add = [&](const char& tensor, int columns) {
        const auto address = reinterpret_cast<uintptr_t>(&tensor);
        for (int column = 0; column < columns; column += AccumLayout::kColumnsPerGroup) {
          const int64_t element = place * columns + column;
          all.insert(reinterpret_cast<const void*>(address + uintptr_t(element) * sizeof(float)));
        }
      };
      add(dk_, C.head_dim);
      add(dv_, C.head_dim_v);
    }
    return all;
  }

  // What a warpgroup adds to the key block's dK and dV.
  void add_to_sums(std::vector<Left>& all, const Work& at, int warpgroup) const {
    const int key_blocks = (shape_.seqlen_k + C.keys_of_cluster() - 1) / C.keys_of_cluster();
    const int block = (at.keys.batch * shape_.kv_heads + at.kv_head) * key_blocks + at.n_block;
    const auto add = [&](const float* sums, const AccumLayout& parts) {
      const int rows = C.splits_dkv() ? at.rank : warpgroup;
      for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
        for (int slab = 0; slab < parts.column_parts(); ++slab) {
          for (int group = 0; group < parts.groups(); ++group) {
            const int place =
                parts.offset(rows * parts.column_parts() + slab, group, warp * kWarpSize);
            all.push_back({at.rank * kWarps + (1 + warpgroup) * kWarpsPerWarpgroup + warp,
                           sums + block * parts.block_floats() + place, 0, 0, 0, 0, 0, true});
          }
        }
      }
    };
    if (!C.splits_dkv() || warpgroup == int(KeyGradient::kDk)) {
      add(params_.dkv_accum.dk, C.dk_accum());
    }
    if (!C.splits_dkv() || warpgroup == int(KeyGradient::kDv)) {
      add(params_.dkv_accum.dv, C.dv_accum());
    }
  }

  Shape shape_;
  char q_ = 0, k_ = 0, v_ = 0, d_o_ = 0, dq_ = 0;  // stand for tensors
  alignas(float) char dk_ = 0;
  alignas(float) char dv_ = 0;
  char pre_ = 0, main_ = 0, main_head_splits_ = 0, post_ = 0;  // and for kernels
  std::vector<char> workspace_;
  BackwardParamsOf<C> params_{};
  RandomMap map_;
  BlockMask mask_;
  int tiles_ = 0;
};

}  // namespace fa3::hopper
