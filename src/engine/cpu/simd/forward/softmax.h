// SPDX-License-Identifier: Apache-2.0
//
// The online softmax of one row group over one key tile, in two forms.
//
// The ordinary step stores the scores, masks them, takes the row maximum and rescales what was
// summed so far. The maximum itself becomes the reference, so that the weight of a key that rules
// its row is exactly 1. It runs where a mask, a softcap or a row without a reference needs it: the
// first panel and the edges. The guarded step runs everywhere else: it keeps the old reference, so
// that scores go from the multiplier's registers through exp2 to P without a maximum, and only
// checks that no sum grew beyond kGuard; for rows where one did, the ordinary step runs. Softmax
// does not depend on the reference, so both are exact. Next: attend_block.h.
#pragma once

#include "engine/cpu/simd/vector/block_mask.h"
#include "engine/cpu/simd/vector/dropout.h"
#include "engine/cpu/simd/vector/exp2.h"

namespace fa3::cpu::FA3_ISA {

// 2^14 in one lane: the reference may lag the maximum by that much, which float sums do not notice.
constexpr float kGuard = 16384.0f;

// Both steps round a score differently: equal scores of this size then have weights 2^-11 apart.
// Larger ones are left to the ordinary step, where equal scores have equal weights.
constexpr float kLargestGuardedReference = 4096.0f;

// One group of Format::kRows rows, of which num_rows exist, and where its state lives.
struct RowGroup {
  int64_t num_rows;
  const float* q;
  const KeyRange* row_keys;
  KeyRange visible, free;
  float* o;
  float* ref;
  float* sum_lanes;
  float* divisor_lanes;
  float* largest;                 // null: not wanted
  const DropoutRowPart* dropout;  // null: none
  const MaskRow* mask;            // null: none
};

// The packed tile: keys [begin, end) of the sequence.
struct Tile {
  int64_t begin, end;
  const float* k;
  const float* v;
  PrefetchRows* next_k;
  PrefetchRows* next_v;
};

// Keys of the tile, counted from its begin, in whole panels.
struct Panels {
  int64_t begin, end;
};

template <class Format>
FA3_INLINE void multiply_scores(const BlockJob& job, const Tile& tile, const RowGroup& group,
                                int64_t key, V (&acc)[kRowsPerGroup][kPanelVectors]) {
  PrefetchRows::one(tile.next_k);
  PrefetchRows::one(tile.next_v);
  const int64_t depth = depth_of<Format>(job.head_dim);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) acc[r][j] = V{};
  }
  multiply<Format>(group.q, packed_q_stride(job), 1, tile.k + key * depth, kPanel, depth, acc);
}

// What turns a product of the micro-kernel into P.
struct GuardedConstants {
  float scale;
  Exp2Polynomial polynomial;
};

// The guarded step for one row: scores become weights, which are added to the sums.
FA3_INLINE void guarded_weights(const GuardedConstants& constants, const float* ref,
                                V (&row)[kPanelVectors], V& sums) {
  const auto& [scale, polynomial] = constants;
  const V row_ref = broadcast_from(ref);
  FA3_UNROLL
  for (int j = 0; j < kPanelVectors; ++j) {
    row[j] = exp2(row[j] * broadcast_from(&scale) - row_ref, polynomial);
    sums += row[j];
  }
}

// Adds the sums of a guarded step to the row's, unless they fail the guard.
template <class Format>
FA3_INLINE bool keep_sums(const RowGroup& group, int64_t r, V sums, V rounded) {
  if (!all_at_most(sums, kGuard)) return false;
  if (__builtin_fabsf(group.ref[r]) > kLargestGuardedReference) return false;
  float* lanes = group.sum_lanes + r * kWidth;
  store(lanes, load(lanes) + sums);
  if (Format::kRoundsWeights) {
    float* divisor = group.divisor_lanes + r * kWidth;
    store(divisor, load(divisor) + rounded);
  }
  return true;
}

// The rows (bit r) whose sum failed the guard: nothing of them has changed. A row's result depends
// on no other row.
template <class Format>
static uint32_t guarded_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                                Panels panels) {
  const int64_t p_stride = job.block_k / Format::kStep;
  const GuardedConstants constants = {.scale = job.scale * kLog2E, .polynomial = {}};
  V sums[kRowsPerGroup] = {}, rounded[kRowsPerGroup] = {};
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    V acc[kRowsPerGroup][kPanelVectors];
    multiply_scores<Format>(job, tile, group, key, acc);
    const GuardedConstants& reread_constants = reread(constants);
    FA3_UNROLL
    for (int r = 0; r < kRowsPerGroup; ++r) {
      guarded_weights(reread_constants, group.ref + r, acc[r], sums[r]);
      Format::store_p(job.buffers.p + r * p_stride + key / Format::kStep, acc[r], rounded[r]);
    }
  }
  uint32_t failed = 0;
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    if (!keep_sums<Format>(group, r, sums[r], rounded[r])) failed |= 1u << r;
  }
  return failed;
}

// Whether scores may go from the multiplier through exp2 at once: one finite factor does it all,
// and nobody asks for the largest.
FA3_INLINE bool has_plain_scores(const BlockJob& job) {
  return job.softcap == 0.0f && job.scale * kLog2E < kInfinity && job.buffers.largest == nullptr;
}

// The capped score in log2 units; what exceeds the floats in these units alone is their largest.
FA3_INLINE V capped(V score, float scale, float softcap) {
  constexpr float kLargest = 0x1.fffffep127f;
  return clamp(cap_fraction(score, scale, softcap) * softcap * kLog2E, -kLargest, kLargest);
}

// Returns the scores, or -inf for keys [key, key + kWidth) that the row does not see.
FA3_INLINE V hide_outside(V score, int64_t key, KeyRange visible) {
  if (key >= visible.begin && key + kWidth <= visible.end) return score;
  const VInt lanes = lane_numbers();
  const auto begin = static_cast<int32_t>(clamp(visible.begin - key, 0, kWidth));
  const auto end = static_cast<int32_t>(clamp(visible.end - key, 0, kWidth));
  const VInt seen = (lanes >= begin) & (lanes < end);
  return (V)(((VInt)score & seen) | ((VInt)broadcast(-kInfinity) & ~seen));
}

// Scores in log2 units: scale, softcap, and -inf for keys [key, key + kWidth) that the row does not
// see.
FA3_INLINE V finish_scores(V score, float scale, float softcap, int64_t key, KeyRange visible) {
  score = softcap > 0.0f ? capped(score, scale, softcap) : score * scale * kLog2E;
  return hide_outside(score, key, visible);
}

// Moves a row's reference up to its new maximum, so that the largest weight is exactly 1, and
// rescales o and the sums to it: all by the same factor, whose rounding therefore cancels.
template <class Format>
FA3_INLINE float raise_reference(float max, const RowGroup& group, int64_t r, int64_t columns) {
  float* ref = group.ref + r;
  const float old_ref = *ref;
  const float new_ref = max > old_ref ? max : old_ref;
  // Without any visible score, 2^(-inf - 0) makes every p zero.
  if (new_ref == -kInfinity) return 0.0f;
  if (new_ref != old_ref && old_ref != -kInfinity) {
    const V factor = exp2(broadcast(old_ref - new_ref));
    float* o = group.o + r * columns;
    for (int64_t c = 0; c < columns; c += kWidth) store(o + c, load(o + c) * factor);
    float* const sum = group.sum_lanes + r * kWidth;
    store(sum, load(sum) * factor);
    if (Format::kRoundsWeights) {
      float* const divisor = group.divisor_lanes + r * kWidth;
      store(divisor, load(divisor) * factor);
    }
  }
  *ref = new_ref;
  return new_ref;
}

// Returns the score, or -inf for keys that a block mask hides.
FA3_INLINE V hide_keys(V score, const MaskRow& mask, int64_t key) {
  const VInt seen = shown_keys(mask, key);
  return (V)(((VInt)score & seen) | ((VInt)broadcast(-kInfinity) & ~seen));
}

// Raises a row's largest q.k, where it is wanted; NaN stays.
FA3_INLINE void raise_largest(const BlockJob& job, const RowGroup& group, int64_t r,
                              int64_t first_key, Panels panels) {
  if (group.largest == nullptr) return;
  const float* scores = job.buffers.scores + r * job.block_k;
  V max = broadcast(group.largest[r]);
  for (int64_t key = panels.begin; key < panels.end; key += kWidth) {
    V score = hide_outside(load(scores + key), first_key + key, group.row_keys[r]);
    if (group.mask != nullptr) score = hide_keys(score, group.mask[r], first_key + key);
    max = (score > max) | (score != score) ? score : max;
  }
  for (int i = 0; i < kWidth; ++i) {
    if (max[i] > group.largest[r] || max[i] != max[i]) group.largest[r] = max[i];
  }
}

// Row r of the ordinary step: scores [begin, end) to p.
template <class Format>
FA3_INLINE void softmax_row(const BlockJob& job, const RowGroup& group, int64_t r,
                            int64_t first_key, Panels panels) {
  float* scores = job.buffers.scores + r * job.block_k;
  float* p = job.buffers.p + r * (job.block_k / Format::kStep);
  float* sum_lanes = group.sum_lanes + r * kWidth;
  float* divisor_lanes = Format::kRoundsWeights ? group.divisor_lanes + r * kWidth : nullptr;
  raise_largest(job, group, r, first_key, panels);
  V max = broadcast(-kInfinity);
  for (int64_t key = panels.begin; key < panels.end; key += kWidth) {
    V score = finish_scores(load(scores + key), job.scale, job.softcap, first_key + key,
                            group.row_keys[r]);
    if (group.mask != nullptr) score = hide_keys(score, group.mask[r], first_key + key);
    store(scores + key, score);
    max = maximum(max, score);
  }
  const float ref = raise_reference<Format>(lanes_max(max), group, r, job.result.columns);
  V sums = load(sum_lanes);
  V rounded = Format::kRoundsWeights ? load(divisor_lanes) : V{};
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    V values[kPanelVectors];
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) {
      values[j] = exp2(load(scores + key + j * kWidth) - ref);
      sums += values[j];
    }
    Format::store_p(p + key / Format::kStep, values, rounded);
  }
  store(sum_lanes, sums);
  if (Format::kRoundsWeights) store(divisor_lanes, rounded);
}

// Visits the rows whose bit is set.
template <class Format>
static void ordinary_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                             Panels panels, uint32_t rows) {
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    V acc[kRowsPerGroup][kPanelVectors];
    multiply_scores<Format>(job, tile, group, key, acc);
    FA3_UNROLL
    for (int r = 0; r < kRowsPerGroup; ++r) {
      FA3_UNROLL
      for (int j = 0; j < kPanelVectors; ++j) {
        store(job.buffers.scores + r * job.block_k + key + j * kWidth, acc[r][j]);
      }
    }
  }
  for (int r = 0; r < kRowsPerGroup; ++r) {
    if (rows >> r & 1) softmax_row<Format>(job, group, r, tile.begin, panels);
  }
}

}  // namespace fa3::cpu::FA3_ISA
