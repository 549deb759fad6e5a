// SPDX-License-Identifier: Apache-2.0
// Included by the generated source of each row of kForward.
#pragma once

#include "engine/ampere/forward/forward_kernel.cuh"
#include "engine/ampere/instances/forward_entry.h"

namespace fa3::ampere {

template <int Row, Element E>
ForwardKernel forward_entry() {
  constexpr ForwardConfig kConfig = kernel_of(kForward[Row], E);
  return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>)};
}

}  // namespace fa3::ampere
