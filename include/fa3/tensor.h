// SPDX-License-Identifier: Apache-2.0

/// @file
/// Views of the caller's memory in the layouts that attention users have. Nothing here owns or
/// copies.
#pragma once

#include <fa3/fa3.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace fa3 {

/// Where a tensor is.
struct Device {
  fa3_device_type type = FA3_CPU;  ///< kind of memory
  int index = 0;                   ///< which CUDA device
};

/// A view with the given shape and strides (in elements). More than FA3_MAX_RANK dimensions are
/// counted, for the library to refuse, and not kept.
inline fa3_tensor strided(const void* data, fa3_dtype dtype, std::initializer_list<int64_t> shape,
                          std::initializer_list<int64_t> stride, Device device = {}) {
  fa3_tensor view{};
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.device_type = device.type;
  view.device_index = device.index;
  for (int64_t extent : shape) {
    if (view.rank < FA3_MAX_RANK) view.shape[view.rank] = extent;
    ++view.rank;
  }
  int dim = 0;
  for (int64_t step : stride) {
    if (dim < FA3_MAX_RANK) view.stride[dim++] = step;
  }
  return view;
}

/// A row-major view: the last dimension is contiguous, nothing is padded.
inline fa3_tensor contiguous(const void* data, fa3_dtype dtype,
                             std::initializer_list<int64_t> shape, Device device = {}) {
  fa3_tensor view = strided(data, dtype, shape, {}, device);
  uint64_t step = 1;  // wraps for extents that the library refuses
  for (int dim = std::min<int>(view.rank, FA3_MAX_RANK) - 1; dim >= 0; --dim) {
    view.stride[dim] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(view.shape[dim]);
  }
  return view;
}

/// (batch, seq, heads, dim) memory.
inline fa3_tensor bshd(const void* data, fa3_dtype dtype, int64_t batch, int64_t seq, int64_t heads,
                       int64_t dim, Device device = {}) {
  return contiguous(data, dtype, {batch, seq, heads, dim}, device);
}

/// (batch, heads, seq, dim) memory, seen as (batch, seq, heads, dim) without a copy.
inline fa3_tensor bhsd(const void* data, fa3_dtype dtype, int64_t batch, int64_t heads, int64_t seq,
                       int64_t dim, Device device = {}) {
  return strided(data, dtype, {batch, seq, heads, dim}, {heads * seq * dim, dim, seq * dim, 1},
                 device);
}

}  // namespace fa3
