// SPDX-License-Identifier: Apache-2.0
// Included by the generated source of each row of kForward, behind the headers of its kernel
// (kernels/headers_of.h): compiling one takes some seconds, and they compile side by side.
#pragma once

#include "engine/hopper/decode/decode_kernel.cuh"
#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

template <int Row, Element E>
ForwardKernel forward_entry() {
  constexpr Kernel kConfig = kernel_of(kForward[Row], E);
  if constexpr (kConfig.is_decode()) {
    constexpr int kBytes = sizeof(DecodeSmem<kConfig>);
    static_assert(kBytes <= smem_bytes_of_each(decode_shape(kConfig).ctas_per_sm));
    return {kConfig, reinterpret_cast<const void*>(&decode_kernel<kConfig>), kBytes};
  } else {
    return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>),
            smem_bytes<kConfig>()};
  }
}

}  // namespace fa3::hopper
