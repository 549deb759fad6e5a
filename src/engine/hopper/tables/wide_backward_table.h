// SPDX-License-Identifier: Apache-2.0
// Every backward kernel with gradients in float32, each for fp16 and bf16: as in backward_table.h,
// but each row in one variant. They have the tiles of the kernels with 16-bit gradients.
#pragma once

#include "engine/hopper/tables/backward_table.h"

namespace fa3::hopper {

inline constexpr std::array kWideBackwardTable{
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .helpers = false,
                                .wide = true},
                     .why = "twice as many queries a step, where its products are short"},
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128, .wide = true},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .variant = Variant::kGeneral,
                                .wide = true},
                     .why = "twice as many queries a step, where its products are short"},
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128, .variant = Variant::kGeneral, .wide = true},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
};

}  // namespace fa3::hopper
