// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the backward's kernels, of the same parts as the forward's
// (config/kernel.h), with the register and shared-memory budgets that follow. Plain constexpr.
// kernels/backward.h has what is built.
#pragma once

#include "core/macros.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/hopper/config/accum_layout.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

inline constexpr int kPreprocessThreads = 256;

// Key blocks of a persistent CTA that are on record: its loader is two ahead of the others at most,
// by the stages of K, and describes another one.
inline constexpr uint32_t kLaps = 4;

// How CTAs share key blocks.
enum class Sharing : unsigned char {
  kNone,        // a CTA for each
  kStepSplits,  // a CTA for each split of a key block's steps
  kPairs,       // CTAs are pairs() to 128 columns, for calls whose mask is full
  kPersistent,  // a CTA has key block after key block (key_block_walk.cuh); one length
};

enum class Gradients : unsigned char {
  kTyped,    // as Q, K and V
  kFloat32,  // may be added to what is there; to 128 columns
};

struct BackwardShape {
  int head_dim = 128;    // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;  // columns of V and dO as tiled
  int block_m = 64;      // query rows of a step
  int block_n = 128;     // keys of a CTA, 64 for each warpgroup that sums dK and dV
  int stages = 4;        // pipeline stages of Q and of dO
  int ds_stages = 2;     // of dS, between those warpgroups and the one that multiplies dQ
  bool helpers = true;   // a warpgroup of its own loads, and keeps the order of additions to dQ

  bool operator==(const BackwardShape&) const = default;
};

// Fields hold choices, functions hold what follows from them.
struct BackwardConfig {
  BackwardShape shape = {};
  Element element = Element::kBf16;
  Tiles tiles = Tiles::kDense;      // kDense, kVarlen, or listed (listed_key_block.cuh)
  Scores scores = Scores::kScaled;  // kCapped: slopes are kept, a softcap's or a score function's
  Weights weights = Weights::kAll;  // kMaskBits with lists
  Gradients gradients = Gradients::kTyped;
  Sharing sharing = Sharing::kNone;

  bool operator==(const BackwardConfig&) const = default;

  // ---- The parts by themselves ----

  FA3_HD constexpr bool general() const {  // every mask and length
    return tiles == Tiles::kVarlen || tiles == Tiles::kListedVarlen;
  }
  FA3_HD constexpr bool capped() const { return scores == Scores::kCapped; }
  FA3_HD constexpr bool dropout() const { return weights == Weights::kDropped; }
  FA3_HD constexpr bool block_mask() const { return weights == Weights::kMaskBits; }
  FA3_HD constexpr bool wide() const { return gradients == Gradients::kFloat32; }
  FA3_HD constexpr bool splits_steps() const { return sharing == Sharing::kStepSplits; }
  FA3_HD constexpr bool in_pairs() const { return sharing == Sharing::kPairs; }
  FA3_HD constexpr bool persistent() const { return sharing == Sharing::kPersistent; }

  // Whether the parts fit each other. Beside lists slopes are kept for sequences of one length.
  FA3_HD constexpr bool is_consistent() const {
    const bool listed = tiles == Tiles::kListed || tiles == Tiles::kListedVarlen;
    const bool keeps_slopes = tiles == Tiles::kVarlen || tiles == Tiles::kListed;
    return (listed || tiles == Tiles::kDense || tiles == Tiles::kVarlen) &&
           block_mask() == listed && (keeps_slopes || !capped()) &&
           (sharing == Sharing::kNone || !(general() || dropout() || wide()));
  }

  // ---- Kernels that follow from it ----

  // The tile's kernel of a variant.
  FA3_HD constexpr BackwardConfig with(Element e, Variant v) const {
    BackwardConfig other = *this;
    other.element = e;
    other.scores = v == Variant::kCapped ? Scores::kCapped : Scores::kScaled;
    const bool of_one_length = v == Variant::kDense || (block_mask() && other.capped());
    other.tiles = block_mask()    ? of_one_length ? Tiles::kListed : Tiles::kListedVarlen
                  : of_one_length ? Tiles::kDense
                                  : Tiles::kVarlen;
    if (other.general()) other.shape.helpers = true;  // loads take more instructions there
    if (v != Variant::kDense && persistent()) other.sharing = Sharing::kNone;
    if (other.keeps_p()) {  // which takes shared memory from Q and dO
      other.shape.block_m = 64;
      other.shape.stages = 3;
      // Helpers would cost the key warpgroups 8 registers; with lists they have work to do.
      other.shape.helpers = block_mask();
    }
    return other;
  }

  // The kernel of calls whose key blocks add to dQ in one order.
  FA3_HD constexpr BackwardConfig deterministic() const {
    BackwardConfig other = *this;
    if (!serves_semaphore()) other.shape.helpers = true;
    if (persistent()) other.sharing = Sharing::kNone;
    return other;
  }

  FA3_HD constexpr BackwardConfig with_step_splits() const {
    BackwardConfig other = *this;
    other.sharing = Sharing::kStepSplits;
    return other;
  }

  // Preprocess and postprocess know nothing of a softcap or of dropout, and preprocess nothing of
  // gradients' types.
  FA3_HD constexpr BackwardConfig of_rows() const {
    BackwardConfig other{.shape = shape, .element = element, .gradients = gradients};
    if (general()) other.tiles = Tiles::kVarlen;
    return other;
  }
  FA3_HD constexpr BackwardConfig of_rows_before() const {
    BackwardConfig other = of_rows();
    other.gradients = Gradients::kTyped;
    return other;
  }

  // A tile holds a whole sequence (short_sequences.cuh).
  FA3_HD constexpr BackwardConfig for_short_sequences() const {
    BackwardConfig other = *this;
    other.shape.block_m = other.shape.block_n = kRowsPerWarpgroup;
    other.shape.stages = other.shape.ds_stages = 1;
    return other;
  }

  // The postprocess kernels of dK and dV: their blocks of rows are blocks of keys.
  FA3_HD constexpr BackwardConfig for_dk_rows() const {
    BackwardConfig other = *this;
    other.shape.block_m = keys_of_cluster();
    return other;
  }
  FA3_HD constexpr BackwardConfig for_dv_rows() const {
    BackwardConfig other = for_dk_rows();
    other.shape.head_dim = shape.head_dim_v;
    return other;
  }

  // ---- Steps, pairs and sums ----

  // Warpgroups of 64 keys do without a first or last step that is the other one's alone
  // (key_gradients.cuh). Not where gradients are float32: the compiler serialises the products.
  FA3_HD constexpr bool leaves_out_steps() const {
    return tiles == Tiles::kVarlen && !capped() && !splits_dkv() && !dropout() && !wide();
  }

  // Two CTAs of a cluster have neighbouring key blocks, and each sums half of dQ's columns for both
  // (key_block_pair.cuh). Additions to dQ limit 256 columns, and a pair makes half as many.
  FA3_HD constexpr bool pairs() const {
    return in_pairs() || (splits_dkv() && shape.head_dim % 128 == 0 && shape.head_dim_v % 128 == 0);
  }
  FA3_HD constexpr int ctas() const { return pairs() ? 2 : 1; }  // of a cluster
  FA3_HD constexpr int keys_of_cluster() const { return ctas() * shape.block_n; }

  // dK and dV leave together, behind the last product, not dV under it. Lists of 64 columns gain 8%
  // a step by that, nothing else is known to (docs/lab/masks.md).
  FA3_HD constexpr bool stores_together() const {
    return block_mask() && shape.head_dim <= 64 && !keeps_p() && !persistent();
  }

  // Kernels for calls of their own beside the main one.
  FA3_HD constexpr bool can_split_steps() const {
    return tiles == Tiles::kDense && !dropout() && !in_pairs() && !persistent() && !has_long_sums();
  }
  FA3_HD constexpr bool can_take_short_sequences() const {
    return tiles == Tiles::kVarlen && !capped() && !dropout() && !splits_dkv() && !wide();
  }

  // Beyond 128 columns dK and dV of 64 keys take a warpgroup each (split_key_gradients.cuh), or a
  // warpgroup both, with so few queries a step that registers last: then dK's product reads dS
  // from shared memory, where dQ's warpgroup finds it.
  FA3_HD constexpr bool splits_dkv() const {
    return shape.head_dim > 128 && shape.block_n == kRowsPerWarpgroup;
  }
  FA3_HD constexpr bool has_long_sums() const { return shape.head_dim > 128 && !splits_dkv(); }
  // Warpgroup 0 waits for dQ's semaphore and counts on, since there may be no helpers.
  FA3_HD constexpr bool serves_semaphore() const { return has_long_sums(); }
  // Where dK and dV are split one warpgroup computes P and another writes dS.
  FA3_HD constexpr bool takes_captured_tile() const { return !splits_dkv(); }
  // Warpgroups with 64 keys each, and so a part of dS.
  FA3_HD constexpr int key_warpgroups() const { return shape.block_n / kRowsPerWarpgroup; }
  // Warpgroups that sum dK and dV; beside them one of dQ, and helpers.
  FA3_HD constexpr int sum_warpgroups() const { return splits_dkv() ? 2 : key_warpgroups(); }
  FA3_HD constexpr int threads() const {
    return (1 + sum_warpgroups() + shape.helpers) * kWarpgroupSize;
  }

  // Four warpgroups have 512 registers to share, 128 a thread at launch; three have 504, 168 each.
  // dQ's warpgroup holds a part of dQ (32) and, without helpers, the loader's state; those of keys
  // hold what key_registers_used() counts.
  FA3_HD constexpr int query_registers() const {
    if (has_long_sums()) return 56;
    return shape.helpers || keeps_p() || signs_p() ? 72 : 88;
  }
  FA3_HD constexpr int key_registers() const {
    if (has_long_sums()) return 224;
    return !shape.helpers && (keeps_p() || signs_p()) ? 216 : 208;
  }
  FA3_HD constexpr int helper_registers() const { return shape.helpers ? 24 : 0; }

  // dK and dV (one of them where they are split), a tile, a packed tile, and 24 for the rest.
  FA3_HD constexpr int key_registers_used() const {
    const int sums = splits_dkv()
                         ? (shape.head_dim > shape.head_dim_v ? shape.head_dim : shape.head_dim_v)
                         : shape.head_dim + shape.head_dim_v;
    return sums / 2 + shape.block_m / 2 + shape.block_m / 4 + 24;
  }

  FA3_HD constexpr tile::TileLayout q_tile() const { return {shape.block_m, shape.head_dim}; }
  FA3_HD constexpr tile::TileLayout d_o_tile() const { return {shape.block_m, shape.head_dim_v}; }
  FA3_HD constexpr tile::TileLayout k_tile() const { return {shape.block_n, shape.head_dim}; }
  FA3_HD constexpr tile::TileLayout v_tile() const { return {shape.block_n, shape.head_dim_v}; }
  FA3_HD constexpr int k_stages() const { return persistent() ? 2 : 1; }
  // A pair leaves room for what the two exchange. Where dK and dV are split, dO comes in halves of
  // the columns, in three stages: dV's sum is done with the first half before dP needs the next.
  // Other pairs give dO the stages of dS: a step reads dO in its first half alone, and the key
  // warpgroups release it there.
  FA3_HD constexpr int d_o_parts() const { return splits_dkv() ? ctas() : 1; }
  FA3_HD constexpr bool d_o_goes_with_ds() const { return pairs() && !splits_dkv(); }
  FA3_HD constexpr int d_o_stages() const {
    if (d_o_goes_with_ds()) return shape.ds_stages;
    return pairs() ? 3 : shape.stages;
  }
  FA3_HD constexpr tile::TileLayout d_o_part() const {
    return {shape.block_m, shape.head_dim_v / d_o_parts()};
  }
  FA3_HD constexpr tile::TileLayout ds_tile() const { return {shape.block_m, shape.block_n}; }
  FA3_HD constexpr tile::TileLayout dk_tile() const { return {kRowsPerWarpgroup, shape.head_dim}; }
  FA3_HD constexpr tile::TileLayout dv_tile() const {
    return {kRowsPerWarpgroup, shape.head_dim_v};
  }
  // For dS capped scores need P times the softcap's derivative, and dropout needs what dV's
  // product must not have. With dropout alone P keeps that in registers, as signs; else each
  // thread keeps its other P for itself in shared memory, in registers' order.
  FA3_HD constexpr bool signs_p() const { return dropout() && !capped() && !splits_dkv(); }
  FA3_HD constexpr bool stores_other_p() const { return (capped() || dropout()) && !signs_p(); }
  FA3_HD constexpr bool keeps_p() const { return stores_other_p() && !splits_dkv(); }
  // Where dK and dV are split, one warpgroup hands P to the other; of a pair in the place of dS,
  // which P's pipeline gives back then.
  FA3_HD constexpr bool p_lies_in_ds() const { return pairs() && splits_dkv(); }
  FA3_HD constexpr int p_bytes() const {
    return (splits_dkv() && !p_lies_in_ds()) || keeps_p()
               ? kRowsPerWarpgroup * shape.block_m * bytes_of(element)
               : 0;
  }
  FA3_HD constexpr AccumLayout dq_accum() const { return {shape.block_m, shape.head_dim}; }
  FA3_HD constexpr int dq_parts() const { return dq_accum().parts() / ctas(); }  // of a CTA
  FA3_HD constexpr AccumLayout dk_accum() const { return {keys_of_cluster(), shape.head_dim}; }
  FA3_HD constexpr AccumLayout dv_accum() const { return {keys_of_cluster(), shape.head_dim_v}; }
};

}  // namespace fa3::hopper
