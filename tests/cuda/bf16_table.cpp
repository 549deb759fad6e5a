// SPDX-License-Identifier: Apache-2.0
// The forward kernels that are built again for a check, in place of the library's: those in bf16,
// since what is checked knows no element type. The check calls no backward.
#include <cstdlib>

#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

ForwardKernel forward_kernel_at(const Row& row, Element element, Outputs outputs) {
  if (element != Element::kBf16 || !row.built || outputs.any()) std::abort();
  return entry_of<Element::kBf16>(row)();
}

BackwardKernel backward_kernel_at(const BackwardRow&, Element) {
  std::abort();
}

}  // namespace fa3::hopper
