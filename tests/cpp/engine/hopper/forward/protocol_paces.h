// SPDX-License-Identifier: Apache-2.0
//
// Who is slow where the protocol tests run the forward kernels.
#pragma once

#include <climits>

#include "many_orders.h"

namespace fa3::hopper {

using machine::Pace;
using machine::slow;

inline const Pace kPaces[] = {
    {},
    {.name = "slow producer", .weight = slow<0, 3>},
    {.name = "slow consumers", .weight = slow<4, INT_MAX>},
    {.name = "slow copies", .engines = 0.02},
    {.name = "one slow warp", .weight = slow<6, 6>},
    {.name = "another slow warp", .engines = 10, .weight = slow<11, 11>, .interruption = 0.5},
};

}  // namespace fa3::hopper
