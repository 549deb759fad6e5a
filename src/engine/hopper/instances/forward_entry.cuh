// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of forward_table.h:
// compiling one takes some seconds, and they compile side by side.
#pragma once

#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/producer/load_cp_async.cuh"
#include "engine/hopper/forward/producer/schedule/split_tiles.cuh"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
ForwardKernel forward_entry() {
  constexpr ForwardConfig kConfig = kForwardTable[Row].config.with(E, V);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
