// SPDX-License-Identifier: Apache-2.0
//
// fa3_dropout_mask(): what core/dropout/dropout.h keeps, weight by weight.
#pragma once

#include <fa3/status.h>

#include <cstdint>

namespace fa3::api {

Status check_probability(float dropout_p);

// The mask's extents; rows are those of a sequence.
struct MaskShape {
  int64_t batch, heads, seqlen_q, seqlen_k;
};

Status write_dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, const MaskShape& shape,
                          uint8_t* keep);

}  // namespace fa3::api
