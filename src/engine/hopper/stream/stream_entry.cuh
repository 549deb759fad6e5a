// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of compiled_stream.h.
#pragma once

#include "engine/hopper/forward_entry.h"
#include "engine/hopper/stream/compiled_stream.h"
#include "engine/hopper/stream/stream_kernel.cuh"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
ForwardKernel stream_entry() {
  constexpr ForwardConfig kConfig = kStreamTable[Row].config.with(E, V);
  if constexpr (kConfig.stream_slots() == 0) {
    return {};
  } else {
    static_assert(sizeof(StreamSmem<kConfig>) <= smem_bytes_of_each(kConfig.stream_blocks()));
    return {kConfig, reinterpret_cast<const void*>(&stream_kernel<kConfig>),
            int(sizeof(StreamSmem<kConfig>))};
  }
}

}  // namespace fa3::hopper
