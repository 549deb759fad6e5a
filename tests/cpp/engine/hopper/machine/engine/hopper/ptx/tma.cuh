// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

using TileCoordinates = machine::Coordinates;

inline void prefetch_tensormap(const CUtensorMap&) {}
inline void cp_async_bulk_tensor_load(uint32_t smem, const CUtensorMap& map, TileCoordinates at,
                                      uint32_t barrier, bool = false) {
  machine::load_tile(smem, map, at, barrier);
}

}  // namespace fa3::hopper::ptx
