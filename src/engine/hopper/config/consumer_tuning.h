// SPDX-License-Identifier: Apache-2.0
// How the consumers of a forward kernel are compiled: which steps they have, and where registers
// are spent. Plain constexpr. Next: forward/consumer/consumer.cuh.
#pragma once

#include "core/quantization.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

struct ConsumerTuning {
  // ---- e4m3 ----

  // Keys that make a part of O, in blocks (policies/promoted_sum.cuh), and the groups of
  // keys in a block that share a scale.
  int promotion_blocks;
  int scale_groups;
  // Where a part ends, it joins the others while Q K^T runs, if registers last for both; else
  // between two steps. Measured, over official: 128 columns 0.978 to 0.982, 64 columns 1.031 to
  // 1.016.
  bool promotes_under_scores;
  // The step that starts a tile is compiled apart from the others: these then have registers to
  // spare, but short sequences pay for the longer code. Measured: at 128 columns 15% at causal 1k.
  bool starts_apart;
  // A last part that is short begins with nothing, which spares the negative of the part before
  // (policies/promoted_sum.cuh). Measured: one part less of 1k keys' two, 3% at 256 columns; blocks
  // of 192 keys and three warpgroups lose 0.5%, by the code alone.
  bool starts_last_part_again;
  // Rows leave by TMA, for which the warp does not wait (policies/sum_promoted.cuh).
  bool stages_rows;
  // All slabs of them in one copy, where tensors are as wide as tiles and heads are not packed.
  // Measured: a copy takes a warp some 150 clocks, and 256 columns up to 1k keys gain 2 to 3%; two
  // copies are no slower than a choice.
  bool sends_slabs_together;
  // Peaked rows are taken by steps of their own, in a loop of their own, that follow their maximum.
  // While a step searches for it, this many of a thread's P are computed, three in eight.
  // Measured: without that 2 to 5% of peaked rows' speed are lost.
  bool tracks_max;
  int shadow_p;
  // Sums of P begin with their first number, not with zero, and 2^-boost is read with a block's
  // scales, not computed. Measured: steps of 192 keys gain 1%, others by up to 1.5% lose up to 1k
  // keys.
  bool lean_sums;

  // ---- P in bf16 ----

  // How far below 1 a row's largest P begins (cuda/softmax/score.cuh): with 24 binary orders scores
  // seldom outgrow it. Measured: docs/lab/hopper.md.
  int headroom_log2;

  // ---- Registers ----

  // The tile's edge is read from shared memory whenever it is asked for.
  bool reads_edge_again;
  // A shorter step between tiles, by registers. Measured: two warpgroups gain 1 to 4% up to 2k
  // keys, three lose 1%.
  bool short_tile_change;
  // P of a thread that are packed while the others are still exponentiated, which waits for
  // the product before. Measured: at 64 columns, where the product is short, a gain of 1 to 3%;
  // else a loss of 3%; with e4m3 a loss of 6 to 15%. With dropout none: a fired guard looks for the
  // largest P, dropped or not.
  int early_p;
  // O may be float32, or its rows end within 16 bytes. Elsewhere the compiler spills.
  bool stores_any_rows;
  // Lost scores can be computed again from keys in pages, so that these may take guarded steps.
  // Elsewhere the compiler spills.
  bool recomputes_pages;

  // Dropout's draws are made before a step's products and wait in registers, of which three
  // consumers have none to spare. Measured: docs/lab/dropout.md.
  bool draws_early;

  // ---- Few queries over a quantized cache ----

  // Tiles are small and follow each other soon, so what a step waits for counts: rows past the last
  // query are left alone, and O is only multiplied where a reference moves.
  bool short_steps;
};

FA3_HD constexpr ConsumerTuning consumer_tuning(const Kernel& c) {
  constexpr int kPromotionKeys = 1152;
  const bool has_registers = c.shape.head_dim_v <= 192 || c.consumers() == 1;
  return {
      .promotion_blocks = kPromotionKeys / c.shape.block_n,
      .scale_groups = c.shape.block_n / kDescaleRows,
      .promotes_under_scores = c.consumers() <= 2,
      .starts_apart = c.e4m3() && c.shape.head_dim_v > 128,
      .starts_last_part_again =
          c.e4m3() && !c.general() && c.shape.block_n <= 128 && c.consumers() <= 2,
      .stages_rows = c.e4m3() && !c.general(),
      .sends_slabs_together = c.e4m3() && !c.general() && c.tiles_in_smem().staged_o.slabs() > 2,
      .tracks_max = c.e4m3() && !c.general(),
      .shadow_p = c.shape.block_n / 16 * 3,
      .lean_sums = c.e4m3() && c.shape.block_n == 192,
      .headroom_log2 = c.has_headroom() ? 24 : 0,
      .reads_edge_again = c.general() || c.e4m3(),
      .short_tile_change = c.consumers() <= 2,
      .early_p =
          c.shape.overlaps && c.shape.head_dim_v <= 64 && !c.e4m3() && c.guarded() && !c.dropout()
              ? c.shape.block_n / 8 * 3
              : 0,
      .stores_any_rows = c.general() && !c.dequantizes() && !c.block_mask() &&
                         c.shape.head_dim != 96 && has_registers,
      .recomputes_pages = c.may_use_cp_async() && !c.capped() && has_registers,
      .draws_early = c.consumers() <= 2,
      .short_steps = c.dequantizes() && c.consumers() == 1};
}

}  // namespace fa3::hopper
