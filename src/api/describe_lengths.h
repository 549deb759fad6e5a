// SPDX-License-Identifier: Apache-2.0
// Sequence lengths: cu_seqlens and seqused of one side, validated where they can be read.
#pragma once

#include "api/describe.h"
#include "api/tensor_rules.h"

namespace fa3::api {

struct LengthArguments {
  Named cu_seqlens, seqused;
  int64_t declared_max;
  const char* max_name;
};

// One side's lengths, from its length arrays and from its operand's shape.
Status describe_lengths(const LengthArguments& arguments, const fa3_tensor& operand,
                        const fa3_tensor& q, int64_t batch, Purpose purpose, Lengths* lengths);

}  // namespace fa3::api
