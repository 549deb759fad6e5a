// SPDX-License-Identifier: Apache-2.0
//
// The rules of a ring's arguments: what is left of fa3_options, whose rows the tensors have, and
// that rows can travel without a copy. The tensors themselves keep the rules of api/describe.
#pragma once

#include <fa3/ring.h>
#include <fa3/status.h>

#include "ring/messages/nccl.h"
#include "ring/schedule/schedule.h"

namespace fa3::ring {

Status check_ring(const fa3_ring& ring, int32_t world);
// What a checked ring is, without the mask.
Whole whole_of(const fa3_ring& ring, int32_t world);

// What the ring and the options say of the whole, or the sentence that names the broken rule.
Status describe(const fa3_forward_params& params, const fa3_ring& ring,
                const Communicator& communicator, bool is_call, Whole* whole);
Status describe(const fa3_backward_params& params, const fa3_ring& ring,
                const Communicator& communicator, bool is_call, Whole* whole);

}  // namespace fa3::ring
