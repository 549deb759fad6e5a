// SPDX-License-Identifier: Apache-2.0
// The kernels of rows, which generated sources have (forward_entry.cuh, backward_entry.cuh).
#include <algorithm>

#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {
namespace {

// The row for all dense calls with the head dims of one for some.
const BackwardRow& row_for_all_calls(const BackwardConfig& c) {
  return *std::ranges::find_if(kBackward, [&](const BackwardRow& row) {
    return row.kernel.shape.head_dim == c.shape.head_dim &&
           row.kernel.shape.head_dim_v == c.shape.head_dim_v && row.kernel.can_split_steps();
  });
}

}  // namespace

ForwardKernel forward_kernel_at(const Row& row, Element element, Outputs outputs) {
  if (row.built && !outputs.any()) return cuda::entry_of(row, element)();
  Kernel config = kernel_of(row, element);
  config.outputs = outputs;
  const int ctas = config.is_decode() ? decode_shape(config).ctas_per_sm : config.shape.ctas_per_sm;
  return {config, nullptr, smem_bytes_of_each(ctas)};
}

BackwardKernel backward_kernel_at(const BackwardRow& row, Element element) {
  BackwardKernel kernel = cuda::entry_of(row, element)();
  if (!is_for_some_dense_calls(row.kernel)) return kernel;
  const BackwardRow& other = row_for_all_calls(row.kernel);
  // Split steps have the same query blocks as the kernels before and after them.
  if (other.kernel.shape.block_m == row.kernel.shape.block_m) {
    kernel.splits = cuda::entry_of(other, element)().splits;
  }
  return kernel;
}

}  // namespace fa3::hopper
