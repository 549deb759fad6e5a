// SPDX-License-Identifier: Apache-2.0
// In place of the kernels of forward and backward calls, for checks that make none: programs of 25
// MB less.
#include <cstdlib>

#include "engine/ampere/instances/backward_entry.h"
#include "engine/ampere/instances/forward_entry.h"
#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3 {

hopper::ForwardKernel hopper::forward_kernel_at(const Row&, Element, Outputs) {
  std::abort();
}
hopper::BackwardKernel hopper::backward_kernel_at(const BackwardRow&, Element) {
  std::abort();
}
ampere::ForwardKernel ampere::forward_kernel_at(const Row&, Element) {
  std::abort();
}
ampere::BackwardKernel ampere::backward_kernel_at(const BackwardRow&, Element) {
  std::abort();
}

}  // namespace fa3
