// SPDX-License-Identifier: Apache-2.0
// What the launchers of both passes compute with.
#pragma once

#include <cstdint>

#include "engine/cuda/rows.h"
#include "engine/hopper/tensor_map.h"

namespace fa3::hopper {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The same tensor for code that reaches it without the copy engine.
inline cuda::RowTensor row_tensor(const TensorSpan& t) {
  return {t.data, {t.batch_stride, t.head_stride, t.row_stride}, int(t.columns)};
}

}  // namespace fa3::hopper
