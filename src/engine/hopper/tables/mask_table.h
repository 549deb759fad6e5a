// SPDX-License-Identifier: Apache-2.0
// Every forward kernel that walks the lists of a block mask, each for fp16 and bf16, for sequences
// of one length (dense) and of their own (general): as in forward_table.h. A tile is a row of
// blocks of the mask, and each step one of its blocks, or half of one.
#pragma once

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

inline constexpr std::array kMaskTable{
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 64,
                              .q_stages = 2,
                              .kv_stages = 8,
                              .overlaps = false,
                              .ping_pong = false,
                              .ctas_per_sm = 2,
                              .block_mask = true},
                   .why = "a row of blocks is work for two warpgroups: two CTAs of them "
                          "keep tensor cores busier than one that overlaps"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 5,
                              .block_mask = true},
                   .why = "two warpgroups share a block of the mask"},
    // select_mask_kernel() takes it where the first would.
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .q_stages = 2,
                              .kv_stages = 8,
                              .block_mask = true},
                   .why = "few tiles: the longest has an SM of its own"},
};

}  // namespace fa3::hopper
