// SPDX-License-Identifier: Apache-2.0
// Every backward kernel that is built, each for fp16 and bf16. CMake writes one source file for
// each row into build/.
#pragma once

#include <array>

#include "engine/hopper/config/backward_config.h"

namespace fa3::hopper {

struct BackwardInstance {
  BackwardConfig config;
  const char* why;
};

// By head dims; the first row that fits is taken.
inline constexpr std::array kBackwardTable{
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 128,
                                .stages = 3,
                                .helpers = false},  // 5% ahead without, measured
                     .why = "twice as many queries a step, where its products are short"},
    BackwardInstance{
        .config = {.head_dim = 96, .head_dim_v = 96},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128},
        .why = "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own"},
    BackwardInstance{.config = {.head_dim = 192, .head_dim_v = 128, .block_n = 64, .stages = 3},
                     .why = "dK and dV of 64 keys stay in registers, a warpgroup each"},
    BackwardInstance{.config = {.head_dim = 192, .head_dim_v = 192, .block_n = 64, .stages = 3},
                     .why = "dK and dV of 64 keys stay in registers, a warpgroup each"},
    BackwardInstance{.config = {.head_dim = 256, .head_dim_v = 256, .block_n = 64, .stages = 2},
                     .why = "dK and dV of 64 keys stay in registers, a warpgroup each"},
};

}  // namespace fa3::hopper
