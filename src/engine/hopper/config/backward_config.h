// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the backward's kernels: tile sizes and buffers, with the register
// and shared-memory budgets that follow. Plain constexpr. What is built stands in backward_table.h.
#pragma once

#include "core/macros.h"
#include "engine/cuda/element.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/config/sum_parts.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

struct BackwardConfig {
  Element element = Element::kBf16;
  int head_dim = 128;    // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;  // columns of V and dO as tiled
  int block_m = 64;      // query rows a step
  int block_n = 128;     // keys a CTA, 64 for each warpgroup that sums dK and dV
  int stages = 4;        // stages of Q and of dO
  int ds_stages = 2;     // stages of dS, between those warpgroups and the one that multiplies dQ
  // Whether a warpgroup of its own loads, and keeps the order of additions to dQ.
  bool helpers = true;
  Variant variant = Variant::kDense;
  bool shares_keys = false;  // key blocks have a CTA for each share of their query heads

  FA3_HD constexpr BackwardConfig with(Element e, Variant v) const {
    BackwardConfig other = *this;
    other.element = e;
    other.variant = v;
    if (other.general()) other.helpers = true;  // to load takes more instructions there
    if (other.keeps_sloped()) {  // what capped weights keep for dS takes the place of Q and dO
      other.block_m = 64;
      other.stages = 3;
      other.helpers = false;  // they would cost the key warpgroups 8 registers
    }
    return other;
  }

  // Of calls whose key blocks add to dQ by turns.
  FA3_HD constexpr BackwardConfig deterministic() const {
    BackwardConfig other = *this;
    other.helpers = true;
    return other;
  }

  FA3_HD constexpr BackwardConfig sharing_keys() const {
    BackwardConfig other = *this;
    other.shares_keys = true;
    return other;
  }

  // Preprocess and postprocess know nothing of a softcap.
  FA3_HD constexpr BackwardConfig without_cap() const {
    BackwardConfig other = *this;
    if (capped()) other.variant = Variant::kGeneral;
    return other;
  }

  // Of sequences that one tile holds (short_sequences.cuh).
  FA3_HD constexpr BackwardConfig of_short_sequences() const {
    BackwardConfig other = *this;
    other.block_m = other.block_n = kRowsPerWarpgroup;
    other.stages = other.ds_stages = 1;
    return other;
  }

  // Of the kernels that write dK's sums, and dV's: the blocks of rows are those of keys.
  FA3_HD constexpr BackwardConfig of_dk_rows() const {
    BackwardConfig other = *this;
    other.block_m = block_n;
    return other;
  }
  FA3_HD constexpr BackwardConfig of_dv_rows() const {
    BackwardConfig other = of_dk_rows();
    other.head_dim = head_dim_v;
    return other;
  }

  FA3_HD constexpr bool general() const { return variant != Variant::kDense; }
  FA3_HD constexpr bool capped() const { return variant == Variant::kCapped; }

  // Beyond 128 columns dK and dV of 64 keys fill two warpgroups, one each (side_gradients.cuh).
  FA3_HD constexpr bool splits_sides() const { return head_dim > 128; }
  // Warpgroups that each hold 64 keys, and so a part of dS.
  FA3_HD constexpr int key_warpgroups() const { return block_n / kRowsPerWarpgroup; }
  // Those that sum dK and dV; beside them one of dQ, and helpers.
  FA3_HD constexpr int sum_warpgroups() const { return splits_sides() ? 2 : key_warpgroups(); }
  FA3_HD constexpr int threads() const { return (1 + sum_warpgroups() + helpers) * kWarpgroupSize; }

  // Four warpgroups have 512 registers to share, 128 a thread at launch; three have 504, 168 each.
  // The one of dQ holds a part of it (32) and, without helpers, the loader's state; those of keys
  // what follows.
  FA3_HD constexpr int query_registers() const { return helpers || keeps_sloped() ? 72 : 88; }
  FA3_HD constexpr int key_registers() const { return !helpers && keeps_sloped() ? 216 : 208; }
  FA3_HD constexpr int helper_registers() const { return helpers ? 24 : 0; }

  // dK and dV (one of them where sides are split), a tile, a packed one, and 24 for the rest.
  FA3_HD constexpr int key_registers_used() const {
    const int sums =
        splits_sides() ? (head_dim > head_dim_v ? head_dim : head_dim_v) : head_dim + head_dim_v;
    return sums / 2 + block_m / 2 + block_m / 4 + 24;
  }

  FA3_HD constexpr tile::TileLayout q_layout() const { return {block_m, head_dim}; }
  FA3_HD constexpr tile::TileLayout d_o_layout() const { return {block_m, head_dim_v}; }
  FA3_HD constexpr tile::TileLayout k_layout() const { return {block_n, head_dim}; }
  FA3_HD constexpr tile::TileLayout v_layout() const { return {block_n, head_dim_v}; }
  FA3_HD constexpr tile::TileLayout ds_layout() const { return {block_m, block_n}; }
  // A warpgroup's weights in registers' order: handed from side to side; capped and times the cap's
  // slope, kept by each thread for itself until dS is computed.
  FA3_HD constexpr bool keeps_sloped() const { return capped() && !splits_sides(); }
  FA3_HD constexpr int p_bytes() const {
    return splits_sides() || capped() ? kRowsPerWarpgroup * block_m * bytes_of(element) : 0;
  }
  FA3_HD constexpr SumParts dq_parts() const { return {block_m, head_dim}; }
  FA3_HD constexpr SumParts dk_parts() const { return {block_n, head_dim}; }
  FA3_HD constexpr SumParts dv_parts() const { return {block_n, head_dim_v}; }
};

}  // namespace fa3::hopper
