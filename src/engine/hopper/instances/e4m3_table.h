// SPDX-License-Identifier: Apache-2.0
// Every forward kernel for e4m3 that is built, each for O in fp16 and bf16: as in
// forward_table.h, but each row in one variant. First those for one length and at most a causal
// mask; then those for all the rest. Tiles were chosen by measurement: docs/lab/fp8.md.
#pragma once

#include "engine/hopper/instances/forward_table.h"

namespace fa3::hopper {

inline constexpr std::array kE4m3Table{
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 192,
                              .block_n = 128,
                              .kv_stages = 8,
                              .ping_pong = false},
                   .why = "softmax is the bottleneck: three warpgroups share it"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 192,
                              .kv_stages = 5,
                              .ping_pong = false},
                   .why = "softmax is the bottleneck: as many keys a step as registers hold"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 8,
                              .ping_pong = false},
                   .max_keys = 1535,
                   .why = "short sequences: 192 keys are too coarse a grain"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 192,
                              .head_dim_v = 192,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 4,
                              .ping_pong = false},
                   .why = "two warpgroups; O leaves room for four stages"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 4,
                              .ping_pong = false},
                   .why = "two warpgroups; the earlier parts of O leave room for four stages"},
    KernelInstance{
        .config = {.e4m3 = true,
                   .head_dim = 64,
                   .head_dim_v = 64,
                   .block_m = 128,
                   .block_n = 128,
                   .kv_stages = 8,
                   .ping_pong = false,
                   .variant = Variant::kCapped},
        .why = "masks and lengths of all kinds; two warpgroups, whose registers hold them"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 7,
                              .ping_pong = false,
                              .variant = Variant::kCapped},
                   .why = "masks and lengths of all kinds"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 192,
                              .head_dim_v = 192,
                              .block_m = 128,
                              .block_n = 64,
                              .kv_stages = 6,
                              .ping_pong = false,
                              .variant = Variant::kCapped},
                   .why = "masks and lengths of all kinds"},
    KernelInstance{.config = {.e4m3 = true,
                              .head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 128,
                              .block_n = 64,
                              .kv_stages = 4,
                              .ping_pong = false,
                              .variant = Variant::kCapped},
                   .why = "masks and lengths of all kinds"},
};

constexpr int num_dense_e4m3_kernels() {
  int rows = 0;
  while (kE4m3Table[size_t(rows)].config.variant == Variant::kDense) ++rows;
  return rows;
}

}  // namespace fa3::hopper
