// SPDX-License-Identifier: Apache-2.0
// Masks as data: block_mask and block_mask_bits, validated where they can be read.
#pragma once

#include "api/describe/describe.h"

namespace fa3::api {

// What a map must cover: rows of the longest sequence, 0 where that is not known.
struct MaskedExtents {
  int64_t queries, keys;
};

// Into problem->block_mask.
Status describe_block_mask(const fa3_options& options, const fa3_tensor& q, MaskedExtents extents,
                           Purpose purpose, Problem* problem);

}  // namespace fa3::api
