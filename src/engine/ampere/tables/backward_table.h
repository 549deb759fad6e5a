// SPDX-License-Identifier: Apache-2.0
// Every backward kernel that is built, each for fp16 and bf16, with P's other form and without.
// CMake writes a source file for each row and kind into build/.
#pragma once

#include <array>

#include "engine/ampere/config/backward_config.h"

namespace fa3::ampere {

struct BackwardInstance {
  BackwardConfig config;
  const char* why;
};

// By head dims; the first row that fits them and the device's shared memory is taken.
inline constexpr std::array kBackwardTable{
    BackwardInstance{
        .config = {.head_dim = 64, .head_dim_v = 64, .block_m = 128, .block_n = 128, .stages = 2},
        .why = "dK and dV of 128 keys stay in registers, 128 queries a step"},
    BackwardInstance{.config = {.head_dim = 64,
                                .head_dim_v = 64,
                                .block_m = 64,
                                .block_n = 128,
                                .stages = 2,
                                .smem_class = kSmallSmemBytes},
                     .why = "64 queries a step fit 99 KB of shared memory"},
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128, .block_m = 64, .block_n = 128, .stages = 2},
        .why = "dK and dV of 128 keys stay in registers"},
    BackwardInstance{.config = {.head_dim = 128,
                                .head_dim_v = 128,
                                .block_m = 32,
                                .block_n = 128,
                                .stages = 1,
                                .smem_class = kSmallSmemBytes},
                     .why = "one stage of 32 queries fits 99 KB of shared memory"},
    BackwardInstance{
        .config = {.head_dim = 192, .head_dim_v = 192, .block_m = 64, .block_n = 64, .stages = 2},
        .why = "dK and dV of 64 keys stay in registers"},
    BackwardInstance{.config = {.head_dim = 192,
                                .head_dim_v = 192,
                                .block_m = 32,
                                .block_n = 64,
                                .stages = 1,
                                .smem_class = kSmallSmemBytes},
                     .why = "64 keys and one stage of 32 queries fit 99 KB of shared memory"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_m = 64,
                                .block_n = 64,
                                .stages = 2,
                                .smem_class = kLargestSmemBytes},
                     .why = "dK and dV of 64 keys stay in registers, a second stage in 227 KB"},
    BackwardInstance{
        .config = {.head_dim = 256, .head_dim_v = 256, .block_m = 64, .block_n = 64, .stages = 1},
        .why = "dK and dV of 64 keys stay in registers"},
    BackwardInstance{.config = {.head_dim = 256,
                                .head_dim_v = 256,
                                .block_m = 16,
                                .block_n = 64,
                                .stages = 1,
                                .smem_class = kSmallSmemBytes},
                     .why = "64 keys and one stage of 16 queries fit 99 KB of shared memory"},
};

}  // namespace fa3::ampere
