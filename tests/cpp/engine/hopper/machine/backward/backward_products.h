// SPDX-License-Identifier: Apache-2.0
//
// What each warp of a backward's CTA multiplies, in order.
#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "backward/backward_work.h"
#include "machine.h"

namespace fa3::hopper {

template <BackwardConfig C>
class BackwardProducts {
 public:
  using Work = BackwardWork<C>;
  // A product: A's tensor (null: registers or dS), row, column, sender; the filling of dS, which
  // may be B; B's tensor, row, column, head, batch; columns and depth; whether it adds.
  using Step =
      std::tuple<const void*, int, int, int, int, const void*, int, int, int, int, int, int, bool>;

  BackwardProducts(const LaunchedBackward<C>& launch, const BackwardWorks<C>& works)
      : launch_(launch), works_(works) {}

  // The steps of a warp that has this work, one after the other. Helpers multiply nothing.
  std::vector<Step> of_warp(int warp, const std::vector<Work>& works) const {
    const int warpgroup = warp / kWarpsPerWarpgroup;
    if (warpgroup == int(BackwardWarpgroup::kQuery)) return query_steps_of(works);
    std::vector<Step> steps;
    if (warpgroup != 1 && warpgroup != 2) return steps;
    Fillings fillings;
    for (const Work& at : works) {
      add_key_steps(steps, at, works_.blocks_of(at), warp - kWarpsPerWarpgroup, fillings);
    }
    return steps;
  }

  static Step step_of(const machine::Product& p) {
    return {p.a.tensor,
            p.a_in_registers ? 0 : p.a.row,
            p.a_in_registers ? 0 : p.a.column,
            p.a.sender,
            p.a_in_registers ? 0 : std::max(p.a.filling, p.b.filling),
            p.b.tensor,
            p.b.row,
            p.b.column,
            p.b.head,
            p.b.batch,
            p.columns,
            p.depth,
            p.adds};
  }

 private:
  // How often each stage of dS has been filled.
  struct Fillings {
    std::array<int, C.shape.ds_stages> of_stage = {};
    size_t made = 0;
    int next() { return ++of_stage[made++ % of_stage.size()]; }
  };

  void add_key_steps(std::vector<Step>& steps, const Work& at, const std::vector<QueryBlock>& all,
                     int warp, Fillings& fillings) const {
    const std::vector<QueryBlock> blocks =
        works_.multiplied_blocks(at, all, warp / kWarpsPerWarpgroup);
    const bool sums_dv = warp < kWarpsPerWarpgroup;  // where dK and dV are split
    const int row_of_warp = C.splits_dkv() ? warp % kWarpsPerWarpgroup : warp;
    const int keys = at.key_row(row_of_warp * kRowsPerWarp);
    const auto product = [&](const void* a, const void* b, QueryBlock block, int columns, int depth,
                             int first_column = 0) {
      return Step{a,
                  a == nullptr ? 0 : keys,
                  0,
                  0,
                  0,
                  b,
                  at.queries.begin + block.m_block * C.shape.block_m,
                  first_column,
                  block.head,
                  at.queries.batch,
                  columns,
                  depth,
                  a == nullptr};  // to sums
    };
    const auto s = [&](QueryBlock b) {
      return product(launch_.k, launch_.q, b, C.shape.block_m, C.shape.head_dim);
    };
    const auto dp = [&](QueryBlock b) {
      return product(launch_.v, launch_.d_o, b, C.shape.block_m, C.shape.head_dim_v);
    };
    const auto dv = [&](QueryBlock b) {
      return product(nullptr, launch_.d_o, b, C.shape.head_dim_v, C.shape.block_m);
    };
    const auto dk = [&](QueryBlock b) {
      Step step = product(nullptr, launch_.q, b, C.shape.head_dim, C.shape.block_m);
      if (C.has_long_sums()) std::get<4>(step) = fillings.next();  // its dS is in shared memory
      return step;
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      const QueryBlock b = blocks[i];
      if (C.splits_dkv()) {
        steps.push_back(sums_dv ? s(b) : dp(b));
        const int columns = sums_dv ? C.shape.head_dim_v : C.shape.head_dim;
        const int at_once = columns == 256 ? 128 : columns;  // more do not fit the registers
        for (int first = 0; first < columns; first += at_once) {
          steps.push_back(product(nullptr, sums_dv ? launch_.d_o : launch_.q, b, at_once,
                                  C.shape.block_m, first));
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
    Fillings fillings;
    for (const Work& at : works) {
      for (size_t i = 0; i < works_.blocks_of(at).size(); ++i) {
        add_query_step(steps, at, fillings.next());
      }
      if (C.persistent()) ++fillings.of_stage[fillings.made % fillings.of_stage.size()];
    }
    return steps;
  }

  void add_query_step(std::vector<Step>& steps, const Work& at, int filling) const {
    const AccumLayout parts = C.dq_accum();
    for (int part = at.first_part(); part < at.first_part() + C.dq_parts(); ++part) {
      if (parts.transposed()) {  // K's columns by dS
        steps.push_back({launch_.k, at.key_row(0), parts.first_column(part), 0, filling, nullptr, 0,
                         0, 0, 0, C.shape.block_m, C.shape.block_n, false});
        continue;
      }
      const auto add = [&](const Work& keys, int sender) {
        // Where P lies in dS's place, each dS is the second filling, P the first.
        steps.push_back({nullptr, 0, 0, sender, C.p_lies_in_ds() ? 2 * filling : filling, launch_.k,
                         keys.key_row(0), parts.first_column(part), at.kv_head, at.keys.batch,
                         parts.columns(), C.shape.block_n, sender > 0});
      };
      add(at, 0);
      if (C.pairs()) add(at.of_other(), at.of_other().rank + 1);
    }
  }

  const LaunchedBackward<C>& launch_;
  const BackwardWorks<C>& works_;
};

}  // namespace fa3::hopper
