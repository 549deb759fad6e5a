// SPDX-License-Identifier: Apache-2.0
//
// What each warp of a backward's CTA multiplies, in order.
#pragma once

#include <tuple>
#include <vector>

#include "backward/backward_work.h"
#include "machine.h"

namespace fa3::hopper {

template <BackwardConfig C>
class BackwardProducts {
 public:
  using Work = BackwardWork<C>;
  // A product: A's tensor (null: registers or dS), row, filling, sender; B's tensor, row, column,
  // head, batch; columns and depth; whether it adds.
  using Step =
      std::tuple<const void*, int, int, int, const void*, int, int, int, int, int, int, bool>;

  BackwardProducts(const LaunchedBackward<C>& launch, const BackwardWorks<C>& works)
      : launch_(launch), works_(works) {}

  // The steps of a warp that has this work, one after the other. Helpers multiply nothing.
  std::vector<Step> of_warp(int warp, const std::vector<Work>& works) const {
    const int warpgroup = warp / kWarpsPerWarpgroup;
    if (warpgroup == int(BackwardWarpgroup::kQuery)) return query_steps_of(works);
    std::vector<Step> steps;
    if (warpgroup != 1 && warpgroup != 2) return steps;
    for (const Work& at : works) {
      add_key_steps(steps, at, works_.blocks_of(at), warp - kWarpsPerWarpgroup);
    }
    return steps;
  }

  static Step step_of(const machine::Product& p) {
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

 private:
  void add_key_steps(std::vector<Step>& steps, const Work& at, const std::vector<QueryBlock>& all,
                     int warp) const {
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
      return product(nullptr, launch_.q, b, C.shape.head_dim, C.shape.block_m);
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
    std::vector<int> fillings(size_t(C.shape.ds_stages), 0);
    size_t made = 0;
    for (const Work& at : works) {
      for (size_t i = 0; i < works_.blocks_of(at).size(); ++i, ++made) {
        add_query_step(steps, at, ++fillings[made % fillings.size()]);
      }
      if (C.persistent()) ++fillings[made % fillings.size()];
    }
    return steps;
  }

  void add_query_step(std::vector<Step>& steps, const Work& at, int filling) const {
    const AccumLayout parts = C.dq_accum();
    for (int part = at.first_part(); part < at.first_part() + C.dq_parts(); ++part) {
      const auto add = [&](const Work& keys, int sender) {
        // Where P lies in dS's place, each dS is the second filling, P the first.
        steps.push_back({nullptr, 0, C.p_lies_in_ds() ? 2 * filling : filling, sender, launch_.k,
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
