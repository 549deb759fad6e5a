// SPDX-License-Identifier: Apache-2.0
// Every forward kernel that goes on from a result over other keys, each for fp16 and bf16: as in
// forward_table.h, but each row in one variant, one variant after the other. Without such a result
// they write O in float32. Tiles are whole, as steps of a ring are long.
#pragma once

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

inline constexpr std::array kContinuedTable{
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 192,
                              .block_n = 128,
                              .kv_stages = 8,
                              .continued = true},
                   .why = "softmax is the bottleneck at 64 columns: three warpgroups share it"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 192,
                              .block_n = 80,
                              .kv_stages = 8,
                              .continued = true},
                   .why = "three warpgroups keep the tensor cores busy"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 192,
                              .block_n = 128,
                              .kv_stages = 8,
                              .variant = Variant::kGeneral,
                              .continued = true},
                   .why = "softmax is the bottleneck at 64 columns: three warpgroups share it"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 192,
                              .block_n = 80,
                              .kv_stages = 8,
                              .variant = Variant::kGeneral,
                              .continued = true},
                   .why = "three warpgroups keep the tensor cores busy"},
};

}  // namespace fa3::hopper
