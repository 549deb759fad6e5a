// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/request.h"

#include <algorithm>

#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kFewRows = 64;
constexpr int64_t kManyKeys = 512;

Need kind_of(const fa3_score_function& score, int captured_tile) {
  if (score.kind == FA3_SCORE_ROW_LINE) return Need::kScoreLine;
  if (score.kind == FA3_SCORE_KEY_TERM) return Need::kScoreKeyTerm;
  if (score.num_tensors == 0) return Need::kScorePure;
  if (score.kind == FA3_SCORE_ROW_LINES) return Need::kScoreTwoLines;
  if (score.kind == FA3_SCORE_ADDED) {
    if (cuda::has_element(score, FA3_ELEMENT_RUN)) return Need::kScoreRun;
    if (cuda::has_element(score, FA3_ELEMENT_CLAMPED_RUN)) return Need::kScoreClampedRun;
  }
  return captured_tile != kNoTile ? Need::kScoreTile : Need::kScoreOther;
}

Sizes sizes_of(const Problem& p, const ForwardCall& call) {
  if (p.dtype == DType::float8_e4m3) {  // keys are never split, and no kernel is for few rows
    return {.head_dim = p.head_dim, .head_dim_v = p.head_dim_v, .keys = p.lengths_k.max};
  }
  Sizes sizes{.head_dim = p.head_dim, .head_dim_v = std::min(p.head_dim_v, kMaxColumnsV)};
  if (p.batch_invariant) {
    // Fixed splits take the kernel for few queries, whole tiles that for long sequences.
    sizes.keys = INT64_MAX;
    sizes.rows = p.num_splits > 1 ? 1 : INT64_MAX;
    return sizes;
  }
  // A window between two bounds, or a chunk, is what one query sees.
  const MaskRuleOf<int>& mask = call.mask;
  const bool bounded = mask.left != mask.kUnbounded && mask.right != mask.kUnbounded;
  const int64_t window = bounded ? int64_t{mask.left} + mask.right + 1 : p.lengths_k.max;
  const int64_t chunk = mask.chunk != mask.kNoChunks ? mask.chunk : p.lengths_k.max;
  sizes.longest = p.lengths_k.max;
  sizes.keys = std::min({window, chunk, p.lengths_k.max});
  // Sequences of one length and few keys are spread over SMs by their tiles.
  const bool may_be_many = call.varlen || sizes.keys >= kManyKeys;
  if (may_be_many) sizes.rows = most_packed(p.group()).rows(p.lengths_q.max);
  return sizes;
}

}  // namespace

int64_t rows_of_key(const ForwardCall& call) {
  const int64_t queries = call.seqlen_q, keys = call.seqlen_k;
  const int64_t seen = call.mask.hides_nothing() ? queries * keys
                       : queries < keys          ? queries * keys - queries * queries / 2
                                                 : keys * keys / 2;
  return seen / keys * call.heads_per_kv_head;
}

Request request_of(const Problem& p, int num_sms) {
  const ForwardCall call = call_of(p);
  const int captured_tile =
      p.score ? find_captured_tile(*p.score, p.lengths_q.max, p.lengths_k.max) : kNoTile;
  return {p, call, needs_of(p, call, captured_tile), sizes_of(p, call), num_sms, captured_tile};
}

Needs needs_of(const Problem& p, const ForwardCall& call, int captured_tile) {
  using enum Need;
  const MaskRuleOf<int>& mask = call.mask;
  const bool is_e4m3 = p.dtype == DType::float8_e4m3;
  const auto are_multiples = [&](int64_t step) {
    return p.head_dim % step == 0 && p.head_dim_v % step == 0;
  };
  Needs needs;
  needs.set(kE4m3, is_e4m3);
  needs.set(kQuantizedKeys, !is_e4m3 && p.has_float8());
  needs.set(kBlockMask, p.block_mask.on);
  needs.set(kDropout, p.dropout.on());
  needs.set(kGate, p.gate.on);
  needs.set(kMaxLogit, p.max_logit.on);
  needs.set(kPartial, p.partial.on);
  needs.set(kSoftcap, p.softcap != 0.0f);
  needs.set(kSink, p.has_sink);
  needs.set(kMasked, !mask.hides_nothing());
  needs.set(kLeftWindow, mask.left != mask.kUnbounded);
  needs.set(kRightWindow, mask.right != mask.kUnbounded && mask.right != 0);
  needs.set(kChunks, mask.chunk != mask.kNoChunks);
  needs.set(kVarlenQueries, p.lengths_q.varlen);
  needs.set(kVarlenKeys, p.lengths_k.varlen);
  needs.set(kPackedKeys, p.lengths_k.in_one_tensor);
  needs.set(kElsewhere, p.key_places.elsewhere);
  needs.set(kIndexed,
            p.key_places.indexed || (p.key_places.elsewhere && p.key_places.entries < p.batch));
  needs.set(kLeftPadding, p.lengths_k.padded_left);
  needs.set(kSingleRows, reads_single_rows(p.key_places, p.lengths_k));
  needs.set(kFloat32Out, p.o.dtype == DType::float32);
  needs.set(kRowsNot8, !are_multiples(8));
  needs.set(kRowsNot16, !are_multiples(16));
  needs.set(kManySplits, p.num_splits > 1);
  needs.set(kAnySplits, p.num_splits != 0);
  needs.set(kBatchInvariant, p.batch_invariant);
  needs.set(kFewRowsOfGroup, p.lengths_q.max * p.group() <= kFewRows);
  needs.set(kNoCpAsync, !has_cp_async_rows(call));
  if (is_e4m3) {
    needs.set(kTransposedValues, p.v_transposed.on && call.has_keys);
    needs.set(kValuesNotByTma, tensor_map_obstacle(call.v) != nullptr);
    needs.set(kNoKeys, !call.has_keys);
  }
  if (p.score != nullptr) {
    needs.set(kScoreFunction);
    needs.set(kind_of(*p.score, captured_tile));
  }
  return needs;
}

}  // namespace fa3::hopper
