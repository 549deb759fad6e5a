// SPDX-License-Identifier: Apache-2.0
// Every forward kernel with dropout, each for fp16 and bf16: as in forward_table.h, but each row in
// one variant, one variant after the other. Tiles are whole, and no two heads share one: a thread's
// draws are those of one head. Blocks of keys are multiples of 16, as draws are.
#pragma once

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

inline constexpr ForwardConfig kDropout128{.head_dim = 128,
                                           .head_dim_v = 128,
                                           .block_m = 128,
                                           .block_n = 128,
                                           .q_stages = 2,
                                           .kv_stages = 5,
                                           .dropout = true};
inline constexpr ForwardConfig kDropout256{.head_dim = 256,
                                           .head_dim_v = 256,
                                           .block_m = 128,
                                           .block_n = 64,
                                           .kv_stages = 5,
                                           .dropout = true};

constexpr ForwardConfig in_variant(ForwardConfig config, Variant variant) {
  config.variant = variant;
  return config;
}

inline constexpr std::array kDropoutTable{
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 192,
                              .block_n = 128,
                              .kv_stages = 8,
                              .dropout = true},
                   .why = "softmax is the bottleneck at 64 columns: three warpgroups share it"},
    KernelInstance{.config = kDropout128, .why = "two warpgroups have registers for the draws"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .kv_stages = 8,
                              .dropout = true,
                              .variant = Variant::kGeneral},
                   .why = "two warpgroups have registers for the draws"},
    KernelInstance{.config = in_variant(kDropout128, Variant::kGeneral),
                   .why = "two warpgroups have registers for the draws"},
    KernelInstance{.config = in_variant(kDropout256, Variant::kGeneral),
                   .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
    KernelInstance{.config = in_variant(kDropout128, Variant::kCapped),
                   .why = "two warpgroups have registers for the draws"},
    KernelInstance{.config = in_variant(kDropout256, Variant::kCapped),
                   .why = "two warpgroups; one Q buffer, so that the pipeline keeps five stages"},
};

}  // namespace fa3::hopper
