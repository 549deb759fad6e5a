// SPDX-License-Identifier: Apache-2.0
// The kernels of rows, which generated sources have (forward_entry.cuh, backward_entry.cuh).
#include "engine/ampere/instances/backward_entry.h"
#include "engine/ampere/instances/forward_entry.h"

namespace fa3::ampere {

ForwardKernel forward_kernel_at(const Row& row, Element element) {
  return cuda::entry_of(row, element)();
}

BackwardKernel backward_kernel_at(const BackwardRow& row, Element element) {
  return cuda::entry_of(row, element)();
}

}  // namespace fa3::ampere
