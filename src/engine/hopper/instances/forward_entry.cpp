// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/forward_entry.h"

#include "engine/hopper/config/decode_shape.h"

namespace fa3::hopper {

ForwardKernel forward_kernel_at(const Row& row, Element element) {
  if (row.built) return entry_of(row, element)();
  const Kernel config = kernel_of(row, element);
  const int ctas = config.is_decode() ? decode_shape(config).ctas_per_sm : config.shape.ctas_per_sm;
  return {config, nullptr, smem_bytes_of_each(ctas)};
}

}  // namespace fa3::hopper
