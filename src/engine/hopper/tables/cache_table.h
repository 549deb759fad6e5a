// SPDX-License-Identifier: Apache-2.0
// Every forward kernel for 16-bit Q over 8-bit K and V (a quantized cache), each for Q and O in
// fp16 and bf16, general and capped: as in forward_table.h. Two rows for each of three head dims:
// few queries, and many. K and V have half the bytes, so half as many wait in shared memory.
#pragma once

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

inline constexpr std::array kCacheTable{
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 6,
                              .quantized_stages = 6,
                              .may_split = true,
                              .guarded = false},
                   .why = "two warpgroups leave registers for those that dequantize keys"},
    KernelInstance{
        .config = {.head_dim = 64,
                   .head_dim_v = 64,
                   .block_m = 64,
                   .block_n = 144,
                   .kv_stages = 3,
                   .ping_pong = false,
                   .ctas_per_sm = 2,
                   .quantized_stages = 5,
                   .may_split = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: a step takes long, so tiles are long; two CTAs an SM hold what comes"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 4,
                              .quantized_stages = 4,
                              .may_split = true,
                              .guarded = false},
                   .why = "two warpgroups leave registers for those that dequantize keys"},
    KernelInstance{
        .config = {.head_dim = 128,
                   .head_dim_v = 128,
                   .block_m = 64,
                   .block_n = 80,
                   .kv_stages = 3,
                   .ping_pong = false,
                   .ctas_per_sm = 2,
                   .quantized_stages = 3,
                   .may_split = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: a step takes long, so tiles are long; two CTAs an SM hold what comes"},
    KernelInstance{.config = {.head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 128,
                              .block_n = 64,
                              .kv_stages = 3,
                              .quantized_stages = 4,
                              .may_split = true,
                              .guarded = false},
                   .why = "two warpgroups leave registers for those that dequantize keys"},
    KernelInstance{
        .config = {.head_dim = 256,
                   .head_dim_v = 256,
                   .block_m = 64,
                   .block_n = 64,
                   .kv_stages = 4,
                   .ping_pong = false,
                   .quantized_stages = 4,
                   .may_split = true,
                   .guarded = false},
        .max_rows = 64,
        .why = "few queries: memory is the bottleneck, the pipeline holds what is on its way"},
};

}  // namespace fa3::hopper
