// SPDX-License-Identifier: Apache-2.0
// Why no kernel serves a call, found by what the kernels offer.
#pragma once

#include "core/error.h"
#include "engine/hopper/plan/request.h"

namespace fa3::hopper {

// OK if a kernel serves the call; if only decode kernels do, they may still not take it.
Status check_served(const Request& r);

// Refuses a call that decode kernels alone serve and do not take (select_decode.h).
Status refuse_many_queries(const Request& r);

}  // namespace fa3::hopper
