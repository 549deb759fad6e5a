// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper::ptx {

inline void cp_async_bulk_load(uint32_t smem, const void* global, uint32_t bytes,
                               uint32_t barrier) {
  machine::load_bytes(smem, global, int(bytes), barrier);
}
inline void cp_async_bulk_tensor_store(const CUtensorMap& map, TileCoordinates at, uint32_t smem) {
  machine::store_tile(map, at, smem);
}
inline void cp_async_bulk_commit_group() {
  machine::commit_copies();
}
template <int Pending>
void cp_async_bulk_wait_group_read() {
  machine::wait_for_copies(Pending);
}
template <int Pending>
void cp_async_bulk_wait_group() {
  machine::wait_for_arrival(Pending);
}

}  // namespace fa3::hopper::ptx
