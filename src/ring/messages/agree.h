// SPDX-License-Identifier: Apache-2.0
//
// Ranks that call with different arguments learn so by the same sentence, instead of waiting.
#pragma once

#include <fa3/ring.h>
#include <fa3/status.h>

#include "api/attention.h"

namespace fa3::ring {

Status agree(const fa3_forward_params& params, const fa3_ring& ring, api::Workspace workspace,
             void* stream);
Status agree(const fa3_backward_params& params, const fa3_ring& ring, api::Workspace workspace,
             void* stream);

}  // namespace fa3::ring
