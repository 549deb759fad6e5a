// SPDX-License-Identifier: Apache-2.0
//
// Rules of scales and means. The quantizer writes what attention reads.
#pragma once

#include "api/describe.h"
#include "api/tensor_rules.h"

namespace fa3::api {

// What the tensor that scales and means belong to looks like.
struct QuantizedShape {
  int64_t batch = 0;  // sequences
  int64_t heads = 0;
  int64_t rows = 0;  // of the longest sequence; 0 where it is not known
  int64_t dim = 0;
  fa3_tensor tensor;  // whose device counts
};

// (1), (batch, heads) or (batch, heads, blocks), float32.
Status check_descale(Named named, const QuantizedShape& of, Purpose purpose);
// (batch, heads, dim), float32.
Status check_mean(Named named, const QuantizedShape& of, Purpose purpose);

// Views of what was checked.
Descales<float> descales(const fa3_tensor& tensor);
ChannelMeans<float> channel_means(const fa3_tensor& tensor);

}  // namespace fa3::api
