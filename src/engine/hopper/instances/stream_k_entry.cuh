// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of stream_k_table.h.
#pragma once

#include "engine/hopper/forward/consumer/score/quantized_score.cuh"
#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/producer/load_cp_async.cuh"
#include "engine/hopper/forward/producer/load_quantized.cuh"
#include "engine/hopper/forward/producer/schedule/stream_k_tiles.cuh"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/stream_k_table.h"

namespace fa3::hopper {

template <int Row, Element E>
ForwardKernel stream_k_entry() {
  constexpr ForwardConfig kConfig = kStreamKTable[Row].config.with(E, Variant::kStreamK);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
