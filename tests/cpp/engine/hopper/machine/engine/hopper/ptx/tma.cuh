// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "machine.h"

namespace fa3::hopper::ptx {

struct TileCoordinates {
  int column;
  int row;
  int head;
  int batch;
};

inline void prefetch_tensormap(const CUtensorMap&) {}
inline void cp_async_bulk_tensor_load(uint32_t smem, const CUtensorMap& map, TileCoordinates at,
                                      uint32_t barrier) {
  machine::load(smem, map, at.column, at.row, at.head, at.batch, barrier);
}

}  // namespace fa3::hopper::ptx
