// SPDX-License-Identifier: Apache-2.0
// Every forward kernel that is built, each for fp16 and bf16: the whole support matrix on one page.
// plan/select_kernel.cpp picks the row: of those for as few query rows, as many keys, and the first
// head dims that fit, the first whose CTAs all have room on an SM, else the last. Every row fits
// the shared memory of every GPU since Ampere. Measured: docs/lab/ampere.md.
#pragma once

#include <array>

#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/catalogue/rows.h"

namespace fa3::ampere {

struct Row {
  ForwardConfig kernel;
  const char* why;
  int least_keys = 0;  // that a query sees on average
  bool built = true;
};

// As many columns of V as of K.
constexpr ForwardConfig tile_of(int columns, int rows, int keys, int ctas_per_sm, int stages = 2) {
  return {.head_dim = columns,
          .head_dim_v = columns,
          .block_m = rows,
          .block_n = keys,
          .stages = stages,
          .ctas_per_sm = ctas_per_sm};
}
constexpr ForwardConfig with_v(ForwardConfig c, int columns) {
  c.head_dim_v = columns;
  return c;
}
constexpr ForwardConfig with_q(ForwardConfig c, int columns_in_registers) {
  c.q_columns = columns_in_registers;
  return c;
}
constexpr ForwardConfig with_dropout(ForwardConfig c) {
  c.dropout = true;
  return c;
}
constexpr ForwardConfig quantized(ForwardConfig c) {
  c.quantized = true;
  return c;
}

constexpr ForwardConfig with_block_mask(ForwardConfig c) {
  c.block_mask = true;
  return c;
}

inline constexpr ForwardConfig kFewRows64 = with_q(tile_of(64, 16, 64, 6), 64),
                               kFewRows128 = with_q(tile_of(128, 16, 32, 6), 128),
                               kFewRows256 = tile_of(256, 16, 32, 3);

inline constexpr char kWideWarp[] = "32 rows a warp: each fragment of K and V serves two products";
inline constexpr char kDrawing[] = "16 rows a warp leave registers for the draws";
inline constexpr char kAlone[] =
    "few query rows: each warp is a CTA, with keys of its own on the way";
inline constexpr char kCache[] =
    "a quantized cache: each warp is a CTA, which dequantizes its keys";

inline constexpr char kMasked[] = "a block mask: blocks of keys that divide the mask's";

inline constexpr std::array kForward{
    Row{tile_of(64, 128, 128, 2), "many keys: 128 a step, few barriers", 1024},
    Row{tile_of(64, 128, 64, 3), "32 rows a warp, and a third CTA under the start of others"},
    Row{tile_of(128, 128, 64, 2), kWideWarp},
    Row{tile_of(128, 128, 48, 2), "the same, for two CTAs on an SM of 164 KB"},
    Row{tile_of(128, 128, 32, 2, 1), "the same, on an SM of 100 KB"},
    Row{with_v(tile_of(192, 128, 32, 2), 128), kWideWarp},
    Row{with_q(tile_of(256, 64, 64, 2, 1), 176),
        "16 rows a warp: their O takes half of the registers, Q most others"},
    Row{with_dropout(with_q(tile_of(64, 64, 64, 2), 64)), kDrawing},
    Row{with_dropout(tile_of(128, 64, 64, 2)), kDrawing},
    Row{with_dropout(tile_of(256, 64, 64, 1, 1)),
        "16 rows a warp: their O takes half of the registers"},
    Row{kFewRows64, kAlone},
    Row{kFewRows128, kAlone},
    Row{kFewRows256, kAlone},
    Row{quantized(kFewRows64), kCache},
    Row{quantized(kFewRows128), kCache},
    Row{quantized(kFewRows256), kCache},
    Row{with_block_mask(tile_of(64, 128, 64, 2)), kMasked},
    Row{with_block_mask(tile_of(128, 128, 32, 2)), kMasked},
    Row{with_block_mask(tile_of(128, 128, 32, 2, 1)), kMasked},
    Row{with_block_mask(tile_of(256, 64, 64, 1, 1)), kMasked},
    Row{with_block_mask(with_dropout(tile_of(128, 64, 64, 2))), kMasked},
    Row{with_block_mask(with_dropout(tile_of(256, 64, 64, 1, 1))), kMasked},
    Row{with_block_mask(kFewRows128), kMasked},
    Row{with_block_mask(kFewRows256), kMasked},
    Row{with_block_mask(quantized(kFewRows128)), kMasked},
    Row{with_block_mask(quantized(kFewRows256)), kMasked},
};

static_assert([] {
  for (const Row& row : kForward) {
    if (row.kernel.smem_bytes() > kSmallSmemBytes) return false;
  }
  return true;
}());

constexpr ForwardConfig kernel_of(const Row& row, Element element) {
  return row.kernel.with(element);
}

}  // namespace fa3::ampere
