// SPDX-License-Identifier: Apache-2.0
// Turns a list of configurations into launchable kernels, for drivers that try more than is shipped.
#pragma once

#include <array>
#include <utility>

#include "engine/hopper/forward_kernel.cuh"
#include "engine/hopper/launch_forward.h"

namespace fa3::testing {

template <hopper::ForwardConfig C>
hopper::ForwardKernel forward_kernel_of() {
  return {C, reinterpret_cast<const void*>(&hopper::forward_kernel<C>), hopper::smem_bytes<C>()};
}

template <const auto& Configs, size_t... I>
auto forward_kernels(std::index_sequence<I...>) {
  return std::array{forward_kernel_of<Configs[I]>()...};
}

template <const auto& Configs>
auto forward_kernels() {
  return forward_kernels<Configs>(std::make_index_sequence<Configs.size()>());
}

}  // namespace fa3::testing
