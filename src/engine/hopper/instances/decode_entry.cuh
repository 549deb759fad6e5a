// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of decode_table.h.
#pragma once

#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/decode/decode_kernel.cuh"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/decode_table.h"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
ForwardKernel decode_entry() {
  constexpr ForwardConfig kConfig = kDecodeTable[Row].config.with(E, V);
  if constexpr (decode_shape(kConfig).stages == 0) {
    return {};
  } else {
    static_assert(sizeof(DecodeSmem<kConfig>) <=
                  smem_bytes_of_each(decode_shape(kConfig).ctas_per_sm));
    return {kConfig, reinterpret_cast<const void*>(&decode_kernel<kConfig>),
            int(sizeof(DecodeSmem<kConfig>))};
  }
}

}  // namespace fa3::hopper
