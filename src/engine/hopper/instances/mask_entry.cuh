// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of mask_table.h.
#pragma once

#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/producer/load_tma_listed.cuh"
#include "engine/hopper/forward/producer/schedule/listed_tiles.cuh"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/mask_table.h"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
ForwardKernel mask_entry() {
  constexpr ForwardConfig kConfig = kMaskTable[Row].config.with(E, V);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
