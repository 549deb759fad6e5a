// SPDX-License-Identifier: Apache-2.0
//
// Rules that one tensor, or two of them, must keep. Each function checks one rule and says, in one
// sentence, which argument breaks it, what was expected, what was given and what to do.
#pragma once

#include <fa3/status.h>

#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace fa3::api {

// A tensor and the name that its error messages use. It only refers to the tensor: each call makes
// dozens of these.
struct Named {
  const char* name;
  const fa3_tensor& tensor;
};

// For an argument that a call does not have.
inline constexpr fa3_tensor kNoTensor = {};
inline constexpr Named kAbsent = {"", kNoTensor};

// "(2, 128, 8, 64)"
std::string shape_text(const fa3_tensor& tensor);

bool has_elements(const fa3_tensor& tensor);

// Whether an optional tensor was given. Questions bring no data, so the rank tells.
inline bool present(const fa3_tensor& tensor) {
  return tensor.data != nullptr || tensor.rank > 0;
}

// Rank, known dtype, sane extents and strides, no overflow in any address, aligned data.
Status check_form(Named named, int rank, const char* dims);
Status check_last_stride(Named named);
Status check_dtype(Named named, std::initializer_list<DType> allowed);
Status check_same_dtype(Named named, Named as);
Status check_same_device(Named named, Named as);
Status check_extent(Named named, int dim, int64_t expected, const char* meaning);
Status check_data(Named named);

}  // namespace fa3::api
