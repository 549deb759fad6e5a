// SPDX-License-Identifier: Apache-2.0
// Recomputes lost scores, which a P of no use has overwritten: those of a consumer warp's rows and
// one block of keys, in pages or not. Rare. Next: consumer_softmax.cuh.
#pragma once

#include "engine/cuda/softmax/recompute_score.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

template <Kernel C>
__device__ __forceinline__ void recompute_scores(float (&scores)[C.shape.block_n / 2],
                                                 const ForwardParams& params,
                                                 const WorkTileOf<C>& work, int first_row,
                                                 int block) {
  int first_key = work.first_key + block * C.shape.block_n;
  if constexpr (C.block_mask()) {
    first_key = cuda::listed_key(work.place.blocks, block * C.shape.block_n);
  }
  const int num_keys = work.keys.count - first_key;
  if constexpr (C.general() || !C.block_mask()) first_key += work.keys.begin;
  const int kv_head = work.queries.pack / params.packs_per_kv_head;
  if constexpr (consumer_tuning(C).recomputes_pages) {
    const PagedKeys& paged = params.paged;
    if (paged.page_size > 0) {
      using Key = PagedKey<C.types().product>;
      const int32_t* const table = paged.table + work.keys.batch * paged.table_stride;
      recompute_score<C.types().product, C.shape.head_dim>(
          scores, params.q, work.queries.batch,
          LaneRows(params.output.pack, work.queries, first_row, thread_in_block()),
          Key{params.k, table, unsigned(paged.page_size), paged.num_pages, kv_head,
              first_key * Key::kRow},
          Key::kRow, num_keys);
      return;
    }
  }
  recompute_score<C.types().product, C.shape.head_dim>(
      scores, params.q, work.queries.batch,
      LaneRows(params.output.pack, work.queries, first_row, thread_in_block()),
      params.k.at<C.types().product>(work.keys.batch, kv_head, first_key), params.k.strides.row,
      num_keys);
}

}  // namespace fa3::hopper
