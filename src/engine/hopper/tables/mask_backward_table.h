// SPDX-License-Identifier: Apache-2.0
// Every backward kernel that walks the lists of a block mask, each for fp16 and bf16, for sequences
// of one length (dense) and of their own (general): as in backward_table.h. A helper loads: it
// walks the lists.
#pragma once

#include "engine/hopper/tables/backward_table.h"

namespace fa3::hopper {

inline constexpr std::array kMaskBackwardTable{
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .block_mask = true,
                                .persistent = true},
                     .why = "a step is a block of the mask"},
    BackwardInstance{.config = {.head_dim = 128, .head_dim_v = 128, .block_mask = true},
                     .why = "dK and dV of 128 keys stay in registers: a step is half a block"},
};

}  // namespace fa3::hopper
