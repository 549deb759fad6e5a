// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of cache_table.h.
#pragma once

#include "engine/hopper/forward/consumer/score/quantized_score.cuh"
#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/producer/load_quantized.cuh"
#include "engine/hopper/forward/producer/schedule/split_tiles.cuh"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/cache_table.h"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
ForwardKernel cache_entry() {
  constexpr ForwardConfig kConfig = kCacheTable[Row].config.with(E, V);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
