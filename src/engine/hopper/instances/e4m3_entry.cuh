// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of e4m3_table.h.
#pragma once

#include "engine/hopper/forward/consumer/max_tracking.cuh"
#include "engine/hopper/forward/consumer/promoted_sum.cuh"
#include "engine/hopper/forward/consumer/score/e4m3_score.cuh"
#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/producer/load_tma_e4m3.cuh"
#include "engine/hopper/forward/producer/schedule/varlen_tiles.cuh"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/e4m3_table.h"

namespace fa3::hopper {

template <int Row, Element E>
ForwardKernel e4m3_entry() {
  constexpr ForwardConfig kTile = kE4m3Table[Row].config;
  constexpr ForwardConfig kConfig = kTile.with(E, kTile.variant);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
