// SPDX-License-Identifier: Apache-2.0
//
// Both passes of one rank of a ring: the calls of schedule.h, and messages beside them. A step is a
// call of api/attention.h, which goes on from a partial result, or adds to gradients.
#pragma once

#include <fa3/ring.h>
#include <fa3/status.h>

#include "api/attention.h"

namespace fa3::ring {

Status workspace_size(const fa3_forward_params& params, const fa3_ring& ring, int64_t* bytes);
Status workspace_size(const fa3_backward_params& params, const fa3_ring& ring, int64_t* bytes);

Status run(const fa3_forward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream);
Status run(const fa3_backward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream);

}  // namespace fa3::ring
