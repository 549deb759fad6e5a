// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files of a build without kernels: the entries of every row,
// each with an address of its own in a kernel's place, which no GPU would launch. Planners and
// launchers run on them over a runtime that only counts.
#pragma once

#include "engine/ampere/instances/backward_entry.h"
#include "engine/ampere/instances/forward_entry.h"

namespace fa3::ampere {

// Aligned as functions are. Part: of those with one config.
template <auto Config, int Part = 0>
alignas(16) inline constexpr char kNoKernel[16] = {};

template <int Row, Element E>
ForwardKernel forward_entry() {
  constexpr ForwardConfig kConfig = kernel_of(kForward[Row], E);
  return {kConfig, kNoKernel<kConfig>};
}

template <int Row, Element E>
BackwardKernel backward_entry() {
  constexpr BackwardConfig kConfig = kernel_of(kBackward[Row], E);
  return {kConfig,
          kNoKernel<kConfig, 1>,
          kNoKernel<kConfig, 2>,
          kNoKernel<kConfig, 3>,
          kNoKernel<kConfig, 4>,
          1 << 15};
}

}  // namespace fa3::ampere
