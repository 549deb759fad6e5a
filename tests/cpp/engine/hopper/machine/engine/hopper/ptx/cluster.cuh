// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "engine/hopper/ptx/mbarrier.cuh"
#include "instructions.h"

namespace fa3::hopper::ptx {

inline unsigned cluster_rank() {
  return machine::cluster_rank();
}
inline void cluster_arrive() {
  machine::cluster_arrive();
}
inline void cluster_arrive_relaxed() {
  machine::cluster_arrive_relaxed();
}
inline void cluster_wait() {
  machine::cluster_wait();
}
inline uint32_t in_block_of_cluster(uint32_t address, unsigned rank) {
  return machine::in_cluster(address, rank);
}
inline void st_async_f32x4(uint32_t address, const float4& v, uint32_t barrier) {
  const float values[] = {v.x, v.y, v.z, v.w};
  machine::send_to_cta(address, values, 4, barrier);
}
inline void st_async_f32x2(uint32_t address, float2 v, uint32_t barrier) {
  const float values[] = {v.x, v.y};
  machine::send_to_cta(address, values, 2, barrier);
}
inline void cp_async_bulk_to_cluster(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  machine::copy_to_cta(to, from, int(bytes), barrier);
}
inline void mbarrier_arrive_in_cluster(uint32_t barrier) {
  machine::arrive_at_cta(barrier);
}
inline void mbarrier_wait_parity_of_cluster(uint32_t barrier, uint32_t parity) {
  mbarrier_wait_parity(barrier, parity);
}

}  // namespace fa3::hopper::ptx
