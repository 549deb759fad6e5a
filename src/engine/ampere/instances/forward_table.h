// SPDX-License-Identifier: Apache-2.0
// Every forward kernel that is built, each for fp16 and bf16: the whole support matrix on one page.
// CMake writes one source file for each row and element into build/; plan/select_kernel.cpp picks
// the row: of those for as few query rows, so many keys, and the first head dims that fit, the
// first whose CTAs all have room on an SM, else the last. Every row fits the shared memory of every
// GPU since Ampere. Measured: docs/lab/ampere.md.
#pragma once

#include <array>

#include "engine/ampere/config/forward_config.h"

namespace fa3::ampere {

struct KernelInstance {
  ForwardConfig config;
  const char* why;
  int least_keys = 0;  // that a query sees on average
};

inline constexpr std::array kForwardTable{
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .dropout = false},
                   .why = "many keys: 128 a step, few barriers",
                   .least_keys = 2048},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 64,
                              .stages = 2,
                              .ctas_per_sm = 3,
                              .dropout = false},
                   .why = "32 rows a warp, and a third thread block under the start of others"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 64,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .dropout = false},
                   .why = "32 rows a warp: each fragment of K and V serves two products"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 48,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .dropout = false},
                   .why = "the same, for two CTAs on an SM of 164 KB"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 32,
                              .stages = 1,
                              .ctas_per_sm = 2,
                              .dropout = false},
                   .why = "the same, on an SM of 100 KB"},
    KernelInstance{.config = {.head_dim = 192,
                              .head_dim_v = 128,
                              .block_m = 128,
                              .block_n = 32,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .dropout = false},
                   .why = "32 rows a warp: each fragment of K and V serves two products"},
    KernelInstance{.config = {.head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 64,
                              .block_n = 64,
                              .stages = 1,
                              .ctas_per_sm = 2,
                              .q_columns = 192,
                              .dropout = false},
                   .why = "16 rows a warp: their O takes half of the registers, Q most others"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 64,
                              .block_n = 64,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .q_columns = 64,
                              .dropout = true},
                   .why = "16 rows a warp leave registers for the draws"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 64,
                              .block_n = 64,
                              .stages = 2,
                              .ctas_per_sm = 2,
                              .dropout = true},
                   .why = "16 rows a warp leave registers for the draws"},
    KernelInstance{.config = {.head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 64,
                              .block_n = 64,
                              .stages = 1,
                              .ctas_per_sm = 1,
                              .dropout = true},
                   .why = "16 rows a warp: their O takes half of the registers"},
    KernelInstance{.config = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 16,
                              .block_n = 64,
                              .stages = 2,
                              .warps = 1,
                              .ctas_per_sm = 6,
                              .q_columns = 64,
                              .dropout = false},
                   .why = "few query rows: each warp is a CTA, with keys of its own on the way"},
    KernelInstance{.config = {.head_dim = 128,
                              .head_dim_v = 128,
                              .block_m = 16,
                              .block_n = 32,
                              .stages = 2,
                              .warps = 1,
                              .ctas_per_sm = 6,
                              .q_columns = 128,
                              .dropout = false},
                   .why = "few query rows: each warp is a CTA, with keys of its own on the way"},
    KernelInstance{.config = {.head_dim = 256,
                              .head_dim_v = 256,
                              .block_m = 16,
                              .block_n = 32,
                              .stages = 2,
                              .warps = 1,
                              .ctas_per_sm = 3,
                              .dropout = false},
                   .why = "few query rows: each warp is a CTA, with keys of its own on the way"},
};

static_assert([] {
  for (const KernelInstance& row : kForwardTable) {
    if (row.config.smem_bytes() > kSmallSmemBytes) return false;
  }
  return true;
}());

}  // namespace fa3::ampere
