// SPDX-License-Identifier: Apache-2.0
// Every forward kernel for 16-bit Q over e4m3 K and V (a quantized cache), each for Q and O in fp16 and
// bf16, general and capped: as in compiled.h. Two rows for each of three head dims: few queries, and
// many. Half the bytes of K and V are on their way at a time, so half as many wait in shared memory.
#pragma once

#include "engine/hopper/compiled.h"

namespace fa3::hopper {

inline constexpr std::array kCacheTable{
    CompiledForward{.config = {.head_dim = 64,
                               .head_dim_v = 64,
                               .block_m = 128,
                               .block_n = 128,
                               .kv_slots = 6,
                               .narrow_slots = 6,
                               .may_cut = true,
                               .guarded = false},
                    .why = "two warpgroups leave registers for those that widen keys"},
    CompiledForward{
        .config = {.head_dim = 64,
                   .head_dim_v = 64,
                   .block_m = 64,
                   .block_n = 144,
                   .kv_slots = 3,
                   .ping_pong = false,
                   .blocks = 2,
                   .narrow_slots = 5,
                   .may_cut = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: a step takes long, so tiles are long; two rings hold what comes"},
    CompiledForward{.config = {.head_dim = 128,
                               .head_dim_v = 128,
                               .block_m = 128,
                               .block_n = 128,
                               .kv_slots = 4,
                               .narrow_slots = 4,
                               .may_cut = true,
                               .guarded = false},
                    .why = "two warpgroups leave registers for those that widen keys"},
    CompiledForward{
        .config = {.head_dim = 128,
                   .head_dim_v = 128,
                   .block_m = 64,
                   .block_n = 80,
                   .kv_slots = 3,
                   .ping_pong = false,
                   .blocks = 2,
                   .narrow_slots = 3,
                   .may_cut = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: a step takes long, so tiles are long; two rings hold what comes"},
    CompiledForward{.config = {.head_dim = 256,
                               .head_dim_v = 256,
                               .block_m = 128,
                               .block_n = 64,
                               .kv_slots = 3,
                               .narrow_slots = 4,
                               .may_cut = true,
                               .guarded = false},
                    .why = "two warpgroups leave registers for those that widen keys"},
    CompiledForward{
        .config = {.head_dim = 256,
                   .head_dim_v = 256,
                   .block_m = 64,
                   .block_n = 64,
                   .kv_slots = 4,
                   .ping_pong = false,
                   .narrow_slots = 4,
                   .may_cut = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: memory is the bottleneck, the ring holds what is on its way"},
};

}  // namespace fa3::hopper
