// SPDX-License-Identifier: Apache-2.0
// What one forward launch is given, by value, as a __grid_constant__. Filled by launch_forward.cpp.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "engine/hopper/piece/schedule.h"

namespace fa3::hopper {

struct RedoEntry;  // piece/work_item.cuh

struct ForwardParams {
  // 5-D maps, dimensions {column, packed head, row, head, batch}.
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;

  void* o;  // strides in elements
  int64_t o_batch_stride;
  int64_t o_head_stride;
  int64_t o_row_stride;
  int head_dim_v;

  float* lse;  // strided (batch, head, row), or null
  int64_t lse_batch_stride;
  int64_t lse_head_stride;
  int64_t lse_row_stride;

  int* ticket_counter;  // starts at zero: tiles are drawn; null: tiles are dealt round-robin
  RedoEntry* redo;      // one entry a tile, need not be initialised

  TileOrder order;
  int packs_per_kv_head;
  int pack_log2;  // 2^pack_log2 query heads are packed: row = query << pack_log2 | head in the pack
  int seqlen_q;
  int seqlen_k;
  bool causal;
  bool some_rows_see_no_key;
  float scale_log2;  // softmax scale * log2(e)
};

}  // namespace fa3::hopper
