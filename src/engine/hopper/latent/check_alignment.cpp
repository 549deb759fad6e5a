// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/check_alignment.h"

#include "core/error.h"

namespace fa3::hopper {

Status check_alignment(const char* name, const void* data, std::initializer_list<int64_t> strides) {
  constexpr int64_t kChunk = 16;  // bytes of a copy
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % kChunk != 0) {
    return unsupported(name, ": expected an address that is a multiple of 16 bytes");
  }
  for (const int64_t stride : strides) {
    if (stride % kChunk == 0) continue;
    return unsupported(name, ": expected strides that are multiples of 16 bytes, got ", stride);
  }
  return {};
}

Status check_row_alignment(const char* name, const Operand& rows) {
  const int64_t size = size_of(rows.dtype);
  return check_alignment(
      name, rows.data, {rows.batch_stride * size, rows.row_stride * size, rows.head_stride * size});
}

}  // namespace fa3::hopper
