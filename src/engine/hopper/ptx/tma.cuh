// SPDX-License-Identifier: Apache-2.0
// The tensor TMA (PTX ISA, "cp.async.bulk.tensor"): tiles of 5-D tensors from global to shared
// memory. Coordinates are {column, inner, row, head, batch}; what lies outside the tensor is read
// as zero. The second dimension is that of packed heads, of which a box has all, or of a clipped
// map's rows (tensor_map.h).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

struct TileCoordinates {
  int column;
  int row;
  int head;
  int batch;
  int inner = 0;
};

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// once: the bytes are not read again soon, so the L2 cache evicts them before others.
__device__ __forceinline__ void cp_async_bulk_tensor_load(uint32_t smem, const CUtensorMap& map,
                                                          TileCoordinates at, uint32_t barrier,
                                                          bool once = false) {
  cuda::disturb();
  if (once) {
    constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // what createpolicy makes of evict_first
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %7, %3, %4, %5}], [%6], %8;" ::"r"(smem),
        "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(barrier),
        "r"(at.inner), "l"(kEvictFirst)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %7, %3, %4, %5}], [%6];" ::"r"(smem),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(barrier),
      "r"(at.inner)
      : "memory");
}

}  // namespace fa3::hopper::ptx
