// SPDX-License-Identifier: Apache-2.0
// Every backward kernel that goes through the blocks of a block mask, each for fp16 and bf16 and
// with P's other form, which softcap and dropout need and others may have. As backward_table.h.
#pragma once

#include "engine/ampere/tables/backward_table.h"

namespace fa3::ampere {

inline constexpr std::array kMaskBackwardTable{
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 64,
                                .block_n = 128,
                                .stages = 2,
                                .smem_class = kSmallSmemBytes,
                                .block_mask = true},
                     .why = "a block mask: fits 99 KB of shared memory"},
    BackwardInstance{.config = {.head_dim = 128,
                                .head_dim_v = 128,
                                .block_m = 64,
                                .block_n = 128,
                                .stages = 2,
                                .block_mask = true},
                     .why = "a block mask: dK and dV of 128 keys stay in registers"},
    BackwardInstance{.config = {.head_dim = 128,
                                .head_dim_v = 128,
                                .block_m = 32,
                                .block_n = 128,
                                .stages = 1,
                                .smem_class = kSmallSmemBytes,
                                .block_mask = true},
                     .why = "a block mask: one stage of 32 queries fits 99 KB of shared memory"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_m = 64,
                                .block_n = 64,
                                .stages = 1,
                                .block_mask = true},
                     .why = "a block mask: dK and dV of 64 keys stay in registers"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_m = 16,
                                .block_n = 64,
                                .stages = 1,
                                .smem_class = kSmallSmemBytes,
                                .block_mask = true},
                     .why = "a block mask: one stage of 16 queries fits 99 KB of shared memory"},
};

}  // namespace fa3::ampere
