// SPDX-License-Identifier: Apache-2.0
// Backward kernels for some dense calls, each for fp16 and bf16, with the head dims of a row of
// backward_table.h, which the other calls take. Which do: plan/backward/plan_backward.cpp.
#pragma once

#include "engine/hopper/tables/backward_table.h"

namespace fa3::hopper {

inline constexpr std::array kDenseBackwardTable{
    BackwardInstance{
        .config =
            {.head_dim = 64, .head_dim_v = 64, .block_m = 128, .stages = 3, .persistent = true},
        .why = "persistent CTAs, which load a key block while the one before it ends: it has few "
               "steps"},
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128, .stages = 3, .in_pairs = true},
        .why = "two CTAs with neighbouring key blocks sum half of dQ's columns each for both"},
};

}  // namespace fa3::hopper
