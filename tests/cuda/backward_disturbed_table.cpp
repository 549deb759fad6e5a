// SPDX-License-Identifier: Apache-2.0
// The disturbed backward kernels, which are built in bf16, in place of the library's.
#include <cstdlib>

#include "engine/hopper/instances/backward_entry.h"

namespace fa3::hopper {

BackwardKernel backward_kernel_at(const BackwardRow& row, Element element) {
  if (element != Element::kBf16 || !row.built) std::abort();
  return entry_of<Element::kBf16>(row)();
}

}  // namespace fa3::hopper
