// SPDX-License-Identifier: Apache-2.0
//
// Rules of scales and means. The quantizer writes what attention reads.
#pragma once

#include "api/describe/describe.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/tensor_rules.h"

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

// An operand of attention and what its numbers stand for: scales and means belong to float8 alone.
// Scales of used rows are looked at where they can be read.
struct QuantizedOperand {
  Named tensor, descale, mean;
};
Status describe_quantization(const QuantizedOperand& operand, const QuantizedShape& shape,
                             const Lengths& lengths, Purpose purpose, Quantization* result);

// Views of what was checked.
template <class Float>
Descales<Float> descales(const fa3_tensor& tensor) {
  constexpr Scaling kByRank[] = {Scaling::per_tensor, Scaling::per_tensor, Scaling::per_head,
                                 Scaling::per_block};
  const bool one = tensor.rank < 2;
  return {.data = static_cast<float*>(tensor.data),
          .scaling = kByRank[tensor.rank],
          .batch_stride = one ? 0 : stride_of(tensor, 0),
          .head_stride = one ? 0 : stride_of(tensor, 1),
          .block_stride = tensor.rank < 3 ? 0 : stride_of(tensor, 2)};
}

template <class Float>
ChannelMeans<Float> channel_means(const fa3_tensor& tensor) {
  return {.data = static_cast<float*>(tensor.data),
          .batch_stride = stride_of(tensor, 0),
          .head_stride = stride_of(tensor, 1)};
}

}  // namespace fa3::api
