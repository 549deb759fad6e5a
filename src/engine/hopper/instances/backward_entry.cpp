// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/backward_entry.h"

#include <algorithm>

namespace fa3::hopper {
namespace {

// The row for all dense calls with the head dims of one for some.
const BackwardRow& row_for_all_calls(const BackwardConfig& c) {
  return *std::ranges::find_if(kBackward, [&](const BackwardRow& row) {
    return row.kernel.head_dim == c.head_dim && row.kernel.head_dim_v == c.head_dim_v &&
           row.kernel.can_split_steps();
  });
}

}  // namespace

BackwardKernel backward_kernel_at(const BackwardRow& row, Element element) {
  BackwardKernel kernel = entry_of(row, element)();
  if (is_for_some_dense_calls(row.kernel)) {
    kernel.splits = entry_of(row_for_all_calls(row.kernel), element)().splits;
  }
  return kernel;
}

}  // namespace fa3::hopper
