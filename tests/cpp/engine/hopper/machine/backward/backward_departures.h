// SPDX-License-Identifier: Apache-2.0
//
// What leaves a backward's CTA: additions to dQ, to the sums of split heads, and gradients of keys.
#pragma once

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "backward/backward_work.h"

namespace fa3::hopper {

template <BackwardConfig C>
class BackwardDepartures {
 public:
  using Work = BackwardWork<C>;
  // The warp of the cluster; where to: an address, or a tensor and its row, rows, column, head and
  // batch; whether it is added.
  using Left = std::tuple<int, const void*, int, int, int, int, int, bool>;

  BackwardDepartures(const LaunchedBackward<C>& launch, const BackwardWorks<C>& works)
      : launch_(launch), works_(works) {}

  void add(std::vector<Left>& all, const Work& at) const {
    const std::vector<QueryBlock> blocks = works_.blocks_of(at);
    const int first_warp = at.rank * kWarps;
    const AccumLayout parts = C.dq_accum();
    for (const QueryBlock& b : blocks) {
      const float* const dq_block = works_.dq_block_of(at, b);
      for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
        for (int part = at.first_part(); part < at.first_part() + C.dq_parts(); ++part) {
          const int row =
              b.m_block * C.shape.block_m + parts.first_row(part) + warp % 4 * kRowsPerWarp;
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
      if (launch_.params.order.step_splits > 1) {
        if (!blocks.empty()) add_to_sums(all, at, w);
        continue;
      }
      if (C.wide()) continue;  // threads store
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
      for (int column = 0; stores_dk && column < C.shape.head_dim;
           column += C.k_tile().slab_columns()) {
        all.push_back({warp, launch_.dk, key, rows, column, at.kv_head, at.keys.batch, false});
      }
      for (int column = 0; stores_dv && column < C.shape.head_dim_v;
           column += C.v_tile().slab_columns()) {
        all.push_back({warp, launch_.dv, key, rows, column, at.kv_head, at.keys.batch, false});
      }
    }
  }

  // Where lanes 0 store gradients of the key block's rows in float32: their own, two of each
  // warp's.
  std::set<const void*> wide_rows_of(const Work& at) const {
    std::set<const void*> all;
    if (launch_.params.order.step_splits > 1) return all;
    const int first = at.n_block * C.shape.block_n;
    for (int row = first; row < std::min(first + C.shape.block_n, at.keys.count); ++row) {
      if (row % kRowDistance != 0) continue;
      const int64_t place =
          (int64_t{at.keys.batch} * launch_.shape.k_rows() + at.keys.begin + row) *
              launch_.shape.kv_heads +
          at.kv_head;
      const auto add = [&](const void* tensor, int columns) {
        const auto address = reinterpret_cast<uintptr_t>(tensor);
        for (int column = 0; column < columns; column += AccumLayout::kColumnsPerGroup) {
          const int64_t element = place * columns + column;
          all.insert(reinterpret_cast<const void*>(address + uintptr_t(element) * sizeof(float)));
        }
      };
      add(launch_.dk, C.shape.head_dim);
      add(launch_.dv, C.shape.head_dim_v);
    }
    return all;
  }

 private:
  // What a warpgroup adds to the key block's dK and dV.
  void add_to_sums(std::vector<Left>& all, const Work& at, int warpgroup) const {
    const int key_blocks = (launch_.shape.seqlen_k + C.keys_of_cluster() - 1) / C.keys_of_cluster();
    const int block = ((at.step_split / kSplitsOfSum * launch_.shape.entries() + at.keys.batch) *
                           launch_.shape.kv_heads +
                       at.kv_head) *
                          key_blocks +
                      at.n_block;
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
      add(launch_.params.dkv_accum.dk, C.dk_accum());
    }
    if (!C.splits_dkv() || warpgroup == int(KeyGradient::kDv)) {
      add(launch_.params.dkv_accum.dv, C.dv_accum());
    }
  }

  static constexpr int kWarps = C.threads() / kWarpSize;

  const LaunchedBackward<C>& launch_;
  const BackwardWorks<C>& works_;
};

}  // namespace fa3::hopper
