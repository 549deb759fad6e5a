// SPDX-License-Identifier: Apache-2.0
// Included by the generated source of each row of kForward, behind the headers of its kernel
// (kernels/headers_of.h): compiling one takes some seconds, and they compile side by side.
#pragma once

#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

template <int Row, Element E>
ForwardKernel forward_entry() {
  constexpr Kernel kConfig = kernel_of(kForward[Row], E);
  using Of = KernelOf<kConfig>;
  return {kConfig, reinterpret_cast<const void*>(Of::kFunction), Of::kSmemBytes};
}

}  // namespace fa3::hopper
