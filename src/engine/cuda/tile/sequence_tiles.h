// SPDX-License-Identifier: Apache-2.0
// An entry of a list of tiles that the device makes of lengths (hopper/scheduler/sequence_tiles.h).
// Each block of rows of a sequence has one, which describes the sequence. Next: tile_order.h.
#pragma once

#include "engine/cuda/tile/sequences.h"
#include "engine/cuda/tile/tile_order.h"

namespace fa3::cuda {

struct alignas(16) SequenceTiles {
  QueryRows queries;
  KeyRows keys;
  int first_entry;  // in the list; the sequence has order.num_m_blocks entries
  TileOrder order;  // the sequence's own tiles
  int number;       // of the sequence
};

}  // namespace fa3::cuda
