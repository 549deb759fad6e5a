// SPDX-License-Identifier: Apache-2.0
// The forward kernels that take a score function. None is built: each is compiled when a call first
// asks for it (launch/score_program.h), for its element, variant and function. Tiles are whole.
#pragma once

#include "engine/hopper/tables/mask_table.h"

namespace fa3::hopper {

// Kernels of functions that capture nothing, or add lines or runs to the score; others spill there,
// by the compiler's word.
inline constexpr std::array kPureScoreTable{
    KernelInstance{
        .config =
            {.head_dim = 64, .head_dim_v = 64, .block_m = 192, .block_n = 128, .kv_stages = 8},
        .why = "softmax is the bottleneck at 64 columns: three warpgroups share it"},
    KernelInstance{
        .config =
            {.head_dim = 128, .head_dim_v = 128, .block_m = 192, .block_n = 80, .kv_stages = 8},
        .why = "three warpgroups keep the tensor cores busy"},
};

// Kernels of all functions. Two warpgroups each: loads take registers.
inline constexpr std::array kScoreTable{
    KernelInstance{
        .config =
            {.head_dim = 64, .head_dim_v = 64, .block_m = 128, .block_n = 128, .kv_stages = 8},
        .why = "two warpgroups have registers for the score function"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .q_stages = 2,
                              .kv_stages = 5},
                   .why = "two warpgroups have registers for the score function"},
    KernelInstance{
        .config =
            {.head_dim = 192, .head_dim_v = 128, .block_m = 128, .block_n = 80, .kv_stages = 5},
        .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{
        .config =
            {.head_dim = 192, .head_dim_v = 192, .block_m = 128, .block_n = 80, .kv_stages = 5},
        .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{
        .config =
            {.head_dim = 256, .head_dim_v = 256, .block_m = 128, .block_n = 64, .kv_stages = 5},
        .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
};

// Kernels that load tiles of a captured tensor, for many keys. Registers last for three warpgroups:
// tiles lie in shared memory.
inline constexpr std::array kTileScoreTable{
    KernelInstance{
        .config =
            {.head_dim = 128, .head_dim_v = 128, .block_m = 192, .block_n = 64, .kv_stages = 6},
        .why = "longer tiles of queries read keys and values less often"},
};

// Kernels that walk the lists of a block mask, as those of mask_table.h with two warpgroups do.
constexpr KernelInstance listed_score_instance(const KernelInstance& row) {
  return {.config = row.config, .why = "two warpgroups have registers for the score function"};
}

inline constexpr std::array kListedScoreTable{
    listed_score_instance(kMaskTable[2]),
    listed_score_instance(kMaskTable[1]),
};

}  // namespace fa3::hopper
