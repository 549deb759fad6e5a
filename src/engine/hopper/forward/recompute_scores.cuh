// SPDX-License-Identifier: Apache-2.0
// Scores whose weights overflowed are gone: those of a consumer warp's rows and one block of keys
// once more, wherever the keys lie. Rare. Next: consumer_softmax.cuh.
#pragma once

#include "engine/cuda/recompute_score.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
__device__ __forceinline__ void recompute_scores(float (&scores)[C.block_n / 2],
                                                 const ForwardParams& params,
                                                 const WorkTileOf<C>& item, int first_row,
                                                 int block) {
  const int first_key = item.keys.begin + item.first_key + block * C.block_n;
  const int kv_head = item.queries.pack / params.packs_per_kv_head;
  if constexpr (C.recomputes_pages()) {
    const PagedKeys& paged = params.paged;
    if (paged.page_size > 0) {
      using Key = PagedKey<C.input()>;
      const int32_t* const table = paged.table + item.keys.batch * paged.table_stride;
      recompute_score<C.input(), C.head_dim>(
          scores, params.q, item.queries.batch,
          LaneRows(params.output.pack, item.queries, first_row, thread_in_block()),
          Key{params.k, table, unsigned(paged.page_size), paged.num_pages, kv_head,
              first_key * Key::kRow},
          Key::kRow);
      return;
    }
  }
  recompute_score<C.input(), C.head_dim>(
      scores, params.q, item.queries.batch,
      LaneRows(params.output.pack, item.queries, first_row, thread_in_block()),
      params.k.at<C.input()>(item.keys.batch, kv_head, first_key), params.k.strides.row);
}

}  // namespace fa3::hopper
