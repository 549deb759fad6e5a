// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of compiled_decode.h.
#pragma once

#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/forward_entry.h"
#include "engine/hopper/forward_kernel.cuh"

namespace fa3::hopper {

template <int Row, Element E>
ForwardKernel decode_entry() {
  constexpr ForwardConfig kConfig = kDecodeTable[Row].config.with(E, Variant::kDecode);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>), smem_bytes<kConfig>()};
}

}  // namespace fa3::hopper
