// SPDX-License-Identifier: Apache-2.0
//
// fa3_dropout_mask(): what core/dropout/dropout.h keeps, weight by weight.
#pragma once

#include <fa3/status.h>

#include <cstdint>

namespace fa3::api {

Status check_probability(float dropout_p);

// A part of the mask: sequences, query heads, and the queries and keys of a sequence.
struct MaskPart {
  int64_t first[4];
  int64_t extents[4];
};

Status write_dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, const MaskPart& part,
                          uint8_t* keep);

}  // namespace fa3::api
