// SPDX-License-Identifier: Apache-2.0
// Sequence lengths: cu_seqlens and seqused of one side, validated where they can be read.
#pragma once

#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"

namespace fa3::api {

struct LengthArguments {
  Named cu_seqlens, seqused;
  int64_t declared_max;
  const char* max_name;
};

// One side's lengths, from its length arrays and the rows of its operand.
Status describe_lengths(const LengthArguments& arguments, int64_t rows, const fa3_tensor& q,
                        int64_t batch, Purpose purpose, Lengths* lengths);

// An int32 array of `count` numbers, one for each sequence or one more.
Status check_length_array(Named named, int64_t count, const fa3_tensor& q, Purpose purpose);

// Whether its numbers can be looked at now.
bool readable(const fa3_tensor& tensor);

// Rows that the longest sequence certainly may have; 0 where nobody said how packed rows are
// shared.
int64_t known_rows(const Lengths& lengths, bool packed, int64_t declared_max);

}  // namespace fa3::api
