// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the backward's kernels: tile sizes and pipeline stages, with the
// register and shared-memory budgets that follow. Plain constexpr. kernels/backward.h has
// what is built.
#pragma once

#include "core/macros.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/hopper/config/accum_layout.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

inline constexpr int kPreprocessThreads = 256;

// Key blocks of a persistent CTA that are on record: its loader is two ahead of the others at most,
// by the stages of K, and describes another one.
inline constexpr uint32_t kLaps = 4;

struct BackwardConfig {
  Element element = Element::kBf16;
  int head_dim = 128;    // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;  // columns of V and dO as tiled
  int block_m = 64;      // query rows of a step
  int block_n = 128;     // keys of a CTA, 64 for each warpgroup that sums dK and dV
  int stages = 4;        // pipeline stages of Q and of dO
  int ds_stages = 2;     // of dS, between those warpgroups and the one that multiplies dQ
  bool helpers = true;   // a warpgroup of its own loads, and keeps the order of additions to dQ
  Variant variant = Variant::kDense;
  bool splits_steps = false;  // a key block has a CTA for each split of its steps
  bool dropout = false;
  bool block_mask = false;  // steps walk the lists of a block mask (listed_key_block.cuh)
  bool wide = false;  // gradients are float32, and may be added to what is there; to 128 columns
  bool in_pairs = false;    // to 128 columns: CTAs are pairs(), for calls whose mask is full
  bool persistent = false;  // CTAs have key block after key block (key_block_walk.cuh); dense

  FA3_HD constexpr BackwardConfig with(Element e, Variant v) const {
    BackwardConfig other = *this;
    other.element = e;
    other.variant = v;
    if (other.general()) other.helpers = true;  // loads take more instructions there
    if (v != Variant::kDense) other.persistent = false;
    if (other.keeps_p()) {  // which takes shared memory from Q and dO
      other.block_m = 64;
      other.stages = 3;
      // Helpers would cost the key warpgroups 8 registers; with lists they have work to do.
      other.helpers = block_mask;
    }
    return other;
  }

  // Key blocks add to dQ in one order.
  FA3_HD constexpr BackwardConfig deterministic() const {
    BackwardConfig other = *this;
    other.helpers = true;
    other.persistent = false;
    return other;
  }

  FA3_HD constexpr BackwardConfig with_step_splits() const {
    BackwardConfig other = *this;
    other.splits_steps = true;
    return other;
  }

  // Preprocess and postprocess know nothing of a softcap or of dropout, and preprocess nothing of
  // gradients' types.
  FA3_HD constexpr BackwardConfig of_rows() const {
    BackwardConfig other = *this;
    if (capped()) other.variant = Variant::kGeneral;
    other.dropout = other.block_mask = other.in_pairs = other.persistent = false;
    return other;
  }
  FA3_HD constexpr BackwardConfig of_rows_before() const {
    BackwardConfig other = of_rows();
    other.wide = false;
    return other;
  }

  // A tile holds a whole sequence (short_sequences.cuh).
  FA3_HD constexpr BackwardConfig for_short_sequences() const {
    BackwardConfig other = *this;
    other.block_m = other.block_n = kRowsPerWarpgroup;
    other.stages = other.ds_stages = 1;
    return other;
  }

  // The postprocess kernels of dK and dV: their blocks of rows are blocks of keys.
  FA3_HD constexpr BackwardConfig for_dk_rows() const {
    BackwardConfig other = *this;
    other.block_m = keys_of_cluster();
    return other;
  }
  FA3_HD constexpr BackwardConfig for_dv_rows() const {
    BackwardConfig other = for_dk_rows();
    other.head_dim = head_dim_v;
    return other;
  }

  // Where slopes are kept beside a block mask, sequences have one length.
  FA3_HD constexpr bool general() const {
    return variant == Variant::kGeneral || (variant == Variant::kCapped && !block_mask);
  }
  FA3_HD constexpr bool capped() const { return variant == Variant::kCapped; }

  // Warpgroups of 64 keys do without a first or last step that is the other one's alone
  // (key_gradients.cuh). Not where gradients are float32: the compiler serialises the products.
  FA3_HD constexpr bool leaves_out_steps() const {
    return variant == Variant::kGeneral && !splits_dkv() && !block_mask && !dropout && !wide;
  }

  // Two CTAs of a cluster have neighbouring key blocks, and each sums half of dQ's columns for both
  // (key_block_pair.cuh). Additions to dQ limit 256 columns, and a pair makes half as many.
  FA3_HD constexpr bool pairs() const {
    return in_pairs || (splits_dkv() && head_dim % 128 == 0 && head_dim_v % 128 == 0);
  }
  FA3_HD constexpr int ctas() const { return pairs() ? 2 : 1; }  // of a cluster
  FA3_HD constexpr int keys_of_cluster() const { return ctas() * block_n; }

  // dK and dV leave together, behind the last product, not dV under it. Lists of 64 columns gain 8%
  // a step by that, nothing else is known to (docs/lab/masks.md).
  FA3_HD constexpr bool stores_together() const {
    return block_mask && head_dim <= 64 && !keeps_p() && !persistent;
  }

  // Kernels for calls of their own beside the main one.
  FA3_HD constexpr bool can_split_steps() const {
    return !general() && !dropout && !block_mask && !in_pairs && !persistent;
  }
  FA3_HD constexpr bool can_take_short_sequences() const {
    return general() && !capped() && !dropout && !block_mask && !splits_dkv() && !wide;
  }

  // Beyond 128 columns dK and dV of 64 keys take a warpgroup each (split_key_gradients.cuh).
  FA3_HD constexpr bool splits_dkv() const { return head_dim > 128; }
  // Warpgroups with 64 keys each, and so a part of dS.
  FA3_HD constexpr int key_warpgroups() const { return block_n / kRowsPerWarpgroup; }
  // Warpgroups that sum dK and dV; beside them one of dQ, and helpers.
  FA3_HD constexpr int sum_warpgroups() const { return splits_dkv() ? 2 : key_warpgroups(); }
  FA3_HD constexpr int threads() const { return (1 + sum_warpgroups() + helpers) * kWarpgroupSize; }

  // Four warpgroups have 512 registers to share, 128 a thread at launch; three have 504, 168 each.
  // dQ's warpgroup holds a part of dQ (32) and, without helpers, the loader's state; those of keys
  // hold what key_registers_used() counts.
  FA3_HD constexpr int query_registers() const {
    return helpers || keeps_p() || signs_p() ? 72 : 88;
  }
  FA3_HD constexpr int key_registers() const {
    return !helpers && (keeps_p() || signs_p()) ? 216 : 208;
  }
  FA3_HD constexpr int helper_registers() const { return helpers ? 24 : 0; }

  // dK and dV (one of them where they are split), a tile, a packed tile, and 24 for the rest.
  FA3_HD constexpr int key_registers_used() const {
    const int sums =
        splits_dkv() ? (head_dim > head_dim_v ? head_dim : head_dim_v) : head_dim + head_dim_v;
    return sums / 2 + block_m / 2 + block_m / 4 + 24;
  }

  FA3_HD constexpr tile::TileLayout q_tile() const { return {block_m, head_dim}; }
  FA3_HD constexpr tile::TileLayout d_o_tile() const { return {block_m, head_dim_v}; }
  FA3_HD constexpr tile::TileLayout k_tile() const { return {block_n, head_dim}; }
  FA3_HD constexpr tile::TileLayout v_tile() const { return {block_n, head_dim_v}; }
  FA3_HD constexpr int k_stages() const { return persistent ? 2 : 1; }
  // A pair leaves room for what the two exchange. Where dK and dV are split, dO comes in halves of
  // the columns, in three stages: dV's sum is done with the first half before dP needs the next.
  // Other pairs give dO the stages of dS: a step reads dO in its first half alone, and the key
  // warpgroups release it there.
  FA3_HD constexpr int d_o_parts() const { return splits_dkv() ? ctas() : 1; }
  FA3_HD constexpr bool d_o_goes_with_ds() const { return pairs() && !splits_dkv(); }
  FA3_HD constexpr int d_o_stages() const {
    if (d_o_goes_with_ds()) return ds_stages;
    return pairs() ? 3 : stages;
  }
  FA3_HD constexpr tile::TileLayout d_o_part() const { return {block_m, head_dim_v / d_o_parts()}; }
  FA3_HD constexpr tile::TileLayout ds_tile() const { return {block_m, block_n}; }
  FA3_HD constexpr tile::TileLayout dk_tile() const { return {kRowsPerWarpgroup, head_dim}; }
  FA3_HD constexpr tile::TileLayout dv_tile() const { return {kRowsPerWarpgroup, head_dim_v}; }
  // For dS capped scores need P times the softcap's derivative, and dropout needs what dV's product
  // must not have. With dropout alone P keeps that in registers, as signs; else each thread keeps
  // its other P for itself in shared memory, in registers' order.
  FA3_HD constexpr bool signs_p() const { return dropout && !capped() && !splits_dkv(); }
  FA3_HD constexpr bool stores_other_p() const { return (capped() || dropout) && !signs_p(); }
  FA3_HD constexpr bool keeps_p() const { return stores_other_p() && !splits_dkv(); }
  // Where dK and dV are split, one warpgroup hands P to the other; of a pair in the place of dS,
  // which P's pipeline gives back then.
  FA3_HD constexpr bool p_lies_in_ds() const { return pairs() && splits_dkv(); }
  FA3_HD constexpr int p_bytes() const {
    return (splits_dkv() && !p_lies_in_ds()) || keeps_p()
               ? kRowsPerWarpgroup * block_m * bytes_of(element)
               : 0;
  }
  FA3_HD constexpr AccumLayout dq_accum() const { return {block_m, head_dim}; }
  FA3_HD constexpr int dq_parts() const { return dq_accum().parts() / ctas(); }  // of a CTA
  FA3_HD constexpr AccumLayout dk_accum() const { return {keys_of_cluster(), head_dim}; }
  FA3_HD constexpr AccumLayout dv_accum() const { return {keys_of_cluster(), head_dim_v}; }
};

}  // namespace fa3::hopper
