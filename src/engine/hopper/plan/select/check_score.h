// SPDX-License-Identifier: Apache-2.0
// Which calls with a score function are left to another engine. Next: plan_forward.cpp.
#pragma once

#include "core/error.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {

// Refuses few queries that another engine is sooner done with.
Status check_score(const Request& r, const Row& row);

}  // namespace fa3::hopper
