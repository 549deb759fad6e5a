// SPDX-License-Identifier: Apache-2.0
// A tensor with its extents, as plans and launches have it; kernels get less (rows.h).
#pragma once

#include <cstdint>

#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// A (batch, row, head, column) tensor of elements with unit stride along columns. Strides
// count elements.
struct TensorSpan {
  void* data = nullptr;
  int64_t batches = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t columns = 0;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int element_bytes = 2;
};

// Describes this tensor for code that reaches it without TMA.
inline RowTensor row_tensor(const TensorSpan& t) {
  return {t.data, {t.batch_stride, t.head_stride, t.row_stride}, int(t.columns)};
}

}  // namespace fa3::cuda
