// SPDX-License-Identifier: Apache-2.0
// Every forward kernel that is built, each for fp16 and bf16 and in every Variant: the whole
// support matrix on one page. CMake writes one source file for each row into build/;
// plan_forward.cpp picks the row. Tiles were chosen by measurement: docs/lab/hopper.md.
#pragma once

#include <array>
#include <cstdint>

#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

struct KernelInstance {
  ForwardConfig config;
  int64_t max_keys = INT64_MAX;  // chosen for key sequences up to this length
  int64_t max_rows = INT64_MAX;  // and up to this many query rows of a sequence, heads packed
  const char* why;
};

// By head dims. The first group of equal head dims that fits a problem has its row: the last one
// that fits the length.
inline constexpr std::array kForwardTable{
    KernelInstance{
        .config =
            {.head_dim = 64, .head_dim_v = 64, .block_m = 192, .block_n = 128, .kv_stages = 8},
        .why = "softmax is the bottleneck at 64 columns: three warpgroups share it"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .q_stages = 2,
                              .kv_stages = 8,
                              .may_split = true},
                   .max_keys = 0,
                   .why = "where tiles of 192 rows are too few for the SMs, and to split them"},
    KernelInstance{
        .config = {.head_dim = 64,
                   .head_dim_v = 64,
                   .block_m = 64,
                   .block_n = 128,
                   .kv_stages = 6,
                   .ping_pong = false,
                   .ctas_per_sm = 2,
                   .may_split = true},
        .max_rows = 64,
        .why = "few queries: memory is the bottleneck, two CTAs an SM hold what is on its way"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 64,
                              .block_n = 32,
                              .q_stages = 2,
                              .kv_stages = 4,
                              .ping_pong = false,
                              .ctas_per_sm = 3},
                   .max_keys = 64,
                   .max_rows = 512,
                   .why = "many sequences of a tile each: several CTAs an SM hide the latencies"},
    KernelInstance{.config = {.head_dim = 96,
                              .head_dim_v = 96,
                              .block_m = 192,
                              .block_n = 96,
                              .kv_stages = 8,
                              .ping_pong = false},
                   .why = "three warpgroups, as many keys a step as their registers hold"},
    KernelInstance{
        .config =
            {.head_dim = 128, .head_dim_v = 128, .block_m = 192, .block_n = 80, .kv_stages = 8},
        .why = "three warpgroups keep the tensor cores busy"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .q_stages = 2,
                              .kv_stages = 5,
                              .may_split = true},
                   .max_keys = 1535,
                   .why = "short sequences: 192 rows are too coarse a grain"},
    KernelInstance{
        .config = {.head_dim = 128,
                   .head_dim_v = 128,
                   .block_m = 64,
                   .block_n = 64,
                   .kv_stages = 5,
                   .ping_pong = false,
                   .ctas_per_sm = 2,
                   .may_split = true},
        .max_rows = 64,
        .why = "few queries: memory is the bottleneck, two CTAs an SM hold what is on its way"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 64,
                              .block_n = 32,
                              .q_stages = 2,
                              .kv_stages = 4,
                              .ping_pong = false,
                              .ctas_per_sm = 2},
                   .max_keys = 64,
                   .max_rows = 512,
                   .why = "many sequences of a tile each: several CTAs an SM hide the latencies"},
    KernelInstance{.config = {.head_dim = 192,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 80,
                              .kv_stages = 5,
                              .may_split = true},
                   .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{.config = {.head_dim = 192,
                              .head_dim_v = 192,
                              .block_m = 128,
                              .block_n = 80,
                              .kv_stages = 5,
                              .may_split = true},
                   .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{.config = {.head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 128,
                              .block_n = 64,
                              .kv_stages = 5,
                              .may_split = true},
                   .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{
        .config = {.head_dim = 256,
                   .head_dim_v = 256,
                   .block_m = 64,
                   .block_n = 64,
                   .kv_stages = 6,
                   .ping_pong = false,
                   .may_split = true},
        .max_rows = 64,
        .why = "few queries: memory is the bottleneck, the pipeline holds what is on its way"},
};

}  // namespace fa3::hopper
