// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/ablation/ablation.h"

#include <utility>

namespace fa3::hopper {
namespace {

template <int... Variants>
ForwardKernel find(int variant, std::integer_sequence<int, Variants...>) {
  constexpr ForwardKernel (*kEntries[])() = {&ablation_entry<Variants>...};
  return kEntries[variant]();
}

}  // namespace

ForwardKernel ablation_kernel_at(int variant) {
  return find(variant, std::make_integer_sequence<int, int(kAblation.size())>());
}

}  // namespace fa3::hopper
