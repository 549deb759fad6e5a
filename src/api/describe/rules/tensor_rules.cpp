// SPDX-License-Identifier: Apache-2.0
#include "api/describe/rules/tensor_rules.h"

#include <algorithm>

#include "core/error.h"

namespace fa3::api {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 40;  // a trillion rows: beyond any memory
constexpr int64_t kMaxStride = int64_t{1} << 60;
constexpr int64_t kMaxElements = int64_t{1} << 60;  // byte offsets stay far inside int64

const char* device_name(int32_t device_type) {
  return device_type == FA3_CPU ? "cpu" : device_type == FA3_CUDA ? "cuda" : "an unknown device";
}

std::string dtype_text(int32_t dtype) {
  return is_known(dtype) ? name_of(static_cast<DType>(dtype)) : concat("unknown dtype ", dtype);
}

}  // namespace

bool has_elements(const fa3_tensor& tensor) {
  return std::all_of(tensor.shape, tensor.shape + tensor.rank, [](int64_t n) { return n > 0; });
}

std::string shape_text(const fa3_tensor& tensor) {
  std::string text = "(";
  for (int dim = 0; dim < tensor.rank && dim < FA3_MAX_RANK; ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(tensor.shape[dim]);
  }
  return text + ")";
}

Status check_form(Named named, int rank, const char* dims) {
  const auto& [name, tensor] = named;
  if (tensor.rank == 0 && rank != 0) {
    return invalid(name, ": expected rank ", rank, " ", dims, ", got rank 0, that is no tensor");
  }
  if (tensor.rank != rank) {
    return invalid(name, ": expected rank ", rank, " ", dims, ", got rank ", tensor.rank, " ",
                   shape_text(tensor));
  }
  if (!is_known(tensor.dtype)) {
    return invalid(name, ": expected a dtype of fa3_dtype, got ", tensor.dtype);
  }
  if (tensor.device_type != FA3_CPU && tensor.device_type != FA3_CUDA) {
    return invalid(name, ": expected device_type FA3_CPU (1) or FA3_CUDA (2), got ",
                   tensor.device_type);
  }
  int64_t elements = 1;
  int64_t last_element = 0;
  for (int dim = 0; dim < rank; ++dim) {
    const int64_t extent = tensor.shape[dim];
    const int64_t stride = tensor.stride[dim];
    if (extent < 0 || extent > kMaxExtent) {
      return invalid(name, ": expected every dimension of ", dims, " in [0, 2^40], got ",
                     shape_text(tensor));
    }
    if (extent <= 1) continue;  // its stride leads nowhere
    if (stride < 0 || stride > kMaxStride) {
      return invalid(name, ": expected strides in [0, 2^60] elements, got ", stride,
                     " in dimension ", dim, stride < 0 ? "; copy a flipped view first" : "");
    }
    int64_t reach = 0;  // extents of 0 do not hide the others: engines multiply any of them
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > kMaxElements ||
        __builtin_mul_overflow(extent - 1, stride, &reach) ||
        __builtin_add_overflow(last_element, reach, &last_element) || last_element > kMaxElements) {
      return invalid(name, ": expected at most 2^60 elements, extents of 0 left out; shape ",
                     shape_text(tensor), " with these strides spans more");
    }
  }
  const int64_t bytes = size_of(static_cast<DType>(tensor.dtype));
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(bytes) != 0) {
    return invalid(name, ": expected data aligned to its element size of ", bytes,
                   " bytes, got address ", tensor.data);
  }
  return {};
}

Status check_last_stride(Named named) {
  const auto& [name, tensor] = named;
  const int last = tensor.rank - 1;
  if (tensor.shape[last] > 1 && tensor.stride[last] != 1 && has_elements(tensor)) {
    return invalid(name, ": expected stride 1 in the last dimension, got ", tensor.stride[last],
                   "; make that dimension contiguous, in torch by contiguous()");
  }
  return {};
}

Status check_dtype(Named named, std::initializer_list<DType> allowed) {
  const auto& [name, tensor] = named;
  if (std::find(allowed.begin(), allowed.end(), static_cast<DType>(tensor.dtype)) !=
      allowed.end()) {
    return {};
  }
  std::string expected;
  for (const DType* dtype = allowed.begin(); dtype != allowed.end(); ++dtype) {
    if (std::find(allowed.begin(), dtype, *dtype) != dtype) continue;  // two rules allow it
    if (!expected.empty()) expected += " or ";
    expected += name_of(*dtype);
  }
  return invalid(name, ": expected ", expected, ", got ", dtype_text(tensor.dtype));
}

Status check_same_dtype(Named named, Named as) {
  if (named.tensor.dtype == as.tensor.dtype) return {};
  return invalid(named.name, ": expected the dtype of ", as.name, ", ", dtype_text(as.tensor.dtype),
                 ", got ", dtype_text(named.tensor.dtype), "; convert one of them");
}

Status check_same_device(Named named, Named as) {
  const fa3_tensor& a = named.tensor;
  const fa3_tensor& b = as.tensor;
  if (a.device_type == b.device_type &&
      (a.device_type == FA3_CPU || a.device_index == b.device_index)) {
    return {};
  }
  return invalid(named.name, ": expected the device of ", as.name, ", ", device_name(b.device_type),
                 ":", b.device_index, ", got ", device_name(a.device_type), ":", a.device_index,
                 "; fa3 never moves data");
}

Status check_extent(Named named, int dim, int64_t expected, const char* meaning) {
  const auto& [name, tensor] = named;
  if (tensor.shape[dim] == expected) return {};
  return invalid(name, ": expected ", meaning, " = ", expected, " in dimension ", dim, ", got ",
                 tensor.shape[dim], " in shape ", shape_text(tensor));
}

Status check_data(Named named) {
  if (named.tensor.data != nullptr || !has_elements(named.tensor)) return {};
  return invalid(named.name, ": expected data, got a null pointer for shape ",
                 shape_text(named.tensor), "; a tensor that is not there has rank 0");
}

}  // namespace fa3::api
