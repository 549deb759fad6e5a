// SPDX-License-Identifier: Apache-2.0
// Every backward kernel with dropout, each for fp16 and bf16: as in backward_table.h, but each row
// in one variant, one variant after the other.
#pragma once

#include "engine/hopper/tables/backward_table.h"

namespace fa3::hopper {

inline constexpr std::array kDropoutBackwardTable{
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .helpers = false,
                                .dropout = true},
                     .why = "twice as many queries a step, where its products are short"},
    BackwardInstance{
        .config =
            {.head_dim = 128, .head_dim_v = 128, .stages = 3, .helpers = false, .dropout = true},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .variant = Variant::kGeneral,
                                .dropout = true},
                     .why = "twice as many queries a step, where its products are short"},
    BackwardInstance{
        .config = {.head_dim = 128,
                   .head_dim_v = 128,
                   .stages = 3,
                   .variant = Variant::kGeneral,
                   .dropout = true},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_n = 64,
                                .stages = 2,
                                .variant = Variant::kGeneral,
                                .dropout = true},
                     .why = "dK and dV of 64 keys stay in registers, a warpgroup each"},
    BackwardInstance{
        .config =
            {.head_dim = 128, .head_dim_v = 128, .variant = Variant::kCapped, .dropout = true},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_n = 64,
                                .stages = 2,
                                .variant = Variant::kCapped,
                                .dropout = true},
                     .why = "dK and dV of 64 keys stay in registers, a warpgroup each"},
};

}  // namespace fa3::hopper
