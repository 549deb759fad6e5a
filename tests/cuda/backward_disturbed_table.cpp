// SPDX-License-Identifier: Apache-2.0
// The table of the disturbed backward kernels, in place of the library's.
#include <cstdlib>
#include <utility>

#include "engine/hopper/backward/backward_entry.h"

namespace fa3::hopper {
namespace {

template <int... Rows>
BackwardKernel find(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&backward_entry<Rows, Element::kBf16>...};
  return kEntries[row]();
}

}  // namespace

BackwardKernel backward_kernel_at(int row, Element element) {
  if (element != Element::kBf16) std::abort();
  return find(row, std::make_integer_sequence<int, int(kBackwardTable.size())>());
}

}  // namespace fa3::hopper
