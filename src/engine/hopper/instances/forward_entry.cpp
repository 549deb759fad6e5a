// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/forward_entry.h"

#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/instances/forward_entries.h"

namespace fa3::hopper {

ForwardKernel forward_kernel_at(const Row& row, Element element) {
  const ForwardEntry entry = element == Element::kFp16 ? forward_entry_of<Element::kFp16>(row)
                                                       : forward_entry_of<Element::kBf16>(row);
  if (entry != nullptr) return entry();
  const Kernel config = kernel_of(row, element);
  const int ctas = config.is_decode() ? decode_shape(config).ctas_per_sm : config.shape.ctas_per_sm;
  return {config, nullptr, smem_bytes_of_each(ctas)};
}

}  // namespace fa3::hopper
