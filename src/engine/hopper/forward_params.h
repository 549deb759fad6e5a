// SPDX-License-Identifier: Apache-2.0
// What one forward launch is given, by value, as a __grid_constant__. Filled by launch_forward.cu.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fa3::hopper {

struct RedoEntry;  // piece/scheduler.cuh

struct ForwardParams {
  // 4-D maps, dimensions {column, row, head, batch}.
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap o_map;

  float* lse;                // (batch, head, seqlen_q), or null
  int* ticket_counter;       // starts at zero: tiles are drawn; null: tiles are dealt round-robin
  RedoEntry* redo;           // one entry a tile, need not be initialised

  int seqlen_q;
  int seqlen_k;
  int num_heads;
  int heads_per_kv_head;
  int num_m_blocks;
  int num_tiles;
  int heads_per_section;     // heads whose K and V are worked on together, to stay in L2

  bool causal;
  float scale_log2;          // softmax scale * log2(e)
};

}  // namespace fa3::hopper
