// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/tensor_rules.h"
#include "api/dropout_mask.h"
#include "core/error.h"
#include "core/macros.h"
#include "plan/default_engine.h"

namespace fa3::api {
namespace {

constexpr int32_t kMostSms = 1024;  // more than any GPU has
constexpr int64_t kMaxShift = int64_t{1} << 30;

Status check_window_side(const char* name, int64_t side) {
  if (side >= -1) return {};
  return invalid(name, ": expected -1 (unbounded) or a number of keys >= 0, got ", side,
                 "; window_shift moves a window beside the diagonal");
}

// How far a side reaches from the diagonal, where the shift moves it outwards by `outwards`. One
// that reaches past every key is unbounded, and one that ends before every key ends there: so later
// arithmetic cannot overflow.
int64_t reach_of(int64_t side, int64_t outwards, int64_t span) {
  const bool bounded = side != FA3_WINDOW_UNBOUNDED && side < span - outwards;
  return bounded ? std::max(side + outwards, -span) : MaskRule::kUnbounded;
}

// A chunk that holds every key and diagonal is as good as any longer one: likewise.
Status describe_mask(const fa3_options& options, Problem* problem) {
  FA3_TRY(check_window_side("window_left", options.window_left));
  FA3_TRY(check_window_side("window_right", options.window_right));
  if (options.attention_chunk < 0) {
    return invalid("attention_chunk: expected 0 (off) or a number of keys > 0, got ",
                   options.attention_chunk);
  }
  const int64_t shift = options.window_shift;
  if (std::abs(shift) >= kMaxShift) {
    return invalid("window_shift: expected a number of keys below 2^30, got ", shift);
  }
  constexpr int64_t kMostRows = int64_t{1} << 61;  // longer ones are refused later
  const int64_t span =
      std::min(problem->lengths_q.max, kMostRows) + std::min(problem->lengths_k.max, kMostRows);
  MaskRule& mask = problem->mask;
  mask = {.left = reach_of(options.window_left, -shift, span),
          .right = reach_of(options.window_right, shift, span),
          .chunk = std::min(options.attention_chunk, span)};
  if (options.causal && (mask.right == MaskRule::kUnbounded || mask.right > 0)) mask.right = 0;
  const bool bounded = mask.left != MaskRule::kUnbounded && mask.right != MaskRule::kUnbounded;
  if (bounded && mask.left + mask.right < 0) mask = {.right = MaskRule::kUnbounded - 1 - span};
  return {};
}

// Words of Philox's counter have 32 bits; tiles begin where a call of the generator does.
Status describe_origin(const fa3_options& options, DropoutOrigin* origin) {
  constexpr int64_t kMostRows = int64_t{1} << 33, kMostOthers = int64_t{1} << 31;
  const struct {
    const char* name;
    int64_t at, step, most;
  } coordinates[] = {{"dropout_sequence", options.dropout_sequence, 1, kMostOthers},
                     {"dropout_head", options.dropout_head, 1, kMostOthers},
                     {"dropout_query", options.dropout_query, kDropoutQueries, kMostRows},
                     {"dropout_key", options.dropout_key, kDropoutKeys, kMostRows}};
  for (const auto& [name, at, step, most] : coordinates) {
    if (at >= 0 && at < most && at % step == 0) continue;
    return invalid(name, ": expected ", step > 1 ? concat("a multiple of ", step) : "a number",
                   " from 0 to ", most - 1, ", got ", at);
  }
  *origin = {.sequence = static_cast<uint32_t>(options.dropout_sequence),
             .head = static_cast<uint32_t>(options.dropout_head),
             .query_word = dropout_query_word(options.dropout_query),
             .key_word = dropout_key_word(options.dropout_key)};
  return {};
}

Status describe_dropout(const fa3_options& options, Dropout* dropout) {
  FA3_TRY(check_probability(options.dropout_p));
  FA3_TRY(describe_origin(options, &dropout->origin));
  dropout->threshold = dropout_threshold(options.dropout_p);
  dropout->seed = options.dropout_seed;
  dropout->offset = options.dropout_offset;
  dropout->seed_at = options.dropout_seed_at;
  dropout->offset_at = options.dropout_offset_at;
  return {};
}

// Judges what a score function says of itself.
Status describe_pieces(const fa3_score_function& score) {
  const fa3_score_element& element = score.element;
  if (score.kind < FA3_SCORE_ANY || score.kind > FA3_SCORE_ROW_LINES) {
    return invalid("score: expected a kind of FA3_SCORE_ANY to FA3_SCORE_ROW_LINES, got ",
                   score.kind);
  }
  if (score.slope != nullptr && score.kind != FA3_SCORE_ANY) {
    return invalid("score: expected no slope of a function that adds to the score, or the kind ",
                   "FA3_SCORE_ANY; got a slope and the kind ", score.kind);
  }
  if (element.kind == FA3_ELEMENT_NONE) return {};
  if (element.kind < FA3_ELEMENT_NONE || element.kind > FA3_ELEMENT_CLAMPED_RUN) {
    return invalid("score: expected an element of kind FA3_ELEMENT_NONE to ",
                   "FA3_ELEMENT_CLAMPED_RUN, got ", element.kind);
  }
  if (score.kind > FA3_SCORE_ADDED) {
    return invalid("score: expected an element with FA3_SCORE_ANY or FA3_SCORE_ADDED alone, got ",
                   "one with the kind ", score.kind);
  }
  if (element.tensor < 0 || element.tensor >= score.num_tensors) {
    return invalid("score: expected an element of one of ", score.num_tensors,
                   " captured tensors, got number ", element.tensor);
  }
  if (element.type == nullptr || element.indices == nullptr) {
    return invalid("score: expected the texts `type` and `indices` of an element, got a null ",
                   "pointer");
  }
  if (element.stores_gradient != 0 && element.kind != FA3_ELEMENT_OF_SCORE) {
    return invalid("score: expected stores_gradient with FA3_ELEMENT_OF_SCORE, got the kind ",
                   element.kind);
  }
  return {};
}

// Judges a score function; what its captured tensors hold is not read.
Status describe_score(const fa3_score_function* score, Problem* problem) {
  problem->score = score;
  if (score == nullptr) return {};
  if (score->text == nullptr) return invalid("score: expected a text, got a null pointer");
  if (score->num_tensors < 0 || score->num_tensors > FA3_MAX_CAPTURED_TENSORS) {
    return invalid("score: expected 0 to ", FA3_MAX_CAPTURED_TENSORS, " captured tensors, got ",
                   score->num_tensors);
  }
  if (score->tensors == nullptr && score->num_tensors > 0) {
    return invalid("score: expected ", score->num_tensors, " captured tensors, got a null pointer");
  }
  FA3_TRY(describe_pieces(*score));
  for (int32_t i = 0; i < score->num_tensors; ++i) {
    const fa3_captured_tensor& tensor = score->tensors[i];
    if (tensor.data == nullptr || tensor.rank < 0 || tensor.rank > FA3_MAX_CAPTURED_RANK) {
      return invalid("score: expected data and 0 to ", FA3_MAX_CAPTURED_RANK,
                     " dimensions of captured tensor ", i, ", got ", tensor.data, " and ",
                     tensor.rank);
    }
    int64_t count = 1;
    for (int32_t dim = 0; dim < tensor.rank; ++dim) {
      if (tensor.shape[dim] < 1 || tensor.shape[dim] > INT32_MAX) {
        return invalid("score: expected extents of 1 to 2^31 - 1 in captured tensor ", i, ", got ",
                       tensor.shape[dim]);
      }
      if (tensor.stride[dim] > INT32_MAX || tensor.stride[dim] < -INT32_MAX) {
        return unsupported("score: strides of more than 2^31 - 1 elements in captured tensor ", i);
      }
      count = std::min<int64_t>(count, INT32_MAX) * tensor.shape[dim];
    }
    if (tensor.gradient == nullptr) continue;
    if (score->gradients == nullptr) {
      return invalid("score: expected the text `gradients`, which adds to that of captured tensor ",
                     i, ", got a null pointer");
    }
    if (score->element.stores_gradient != 0 && i == score->element.tensor) continue;
    if (count > INT32_MAX) {
      return unsupported("score: a gradient of more than 2^31 - 1 elements, of captured tensor ",
                         i);
    }
  }
  if (problem->softcap != 0.0f) {
    return unsupported("softcap: expected 0 with a score function, which can have its own, got ",
                       problem->softcap);
  }
  return {};
}

}  // namespace

Status describe_options(const fa3_options& options, int64_t head_dim, int32_t device_type,
                        Problem* problem) {
  if (options.scale == FA3_SCALE_AUTO) {
    problem->scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  } else if (std::isfinite(options.scale) && options.scale > 0.0f) {
    problem->scale = options.scale;
  } else {
    return invalid("scale: expected a finite number > 0, or FA3_SCALE_AUTO for head_dim^-0.5, got ",
                   options.scale);
  }
  if (!std::isfinite(options.softcap) || options.softcap < 0.0f) {
    return invalid("softcap: expected 0 (off) or a finite number > 0, got ", options.softcap);
  }
  problem->softcap = options.softcap;
  if (options.causal != 0 && options.causal != 1) {
    return invalid("causal: expected 0 or 1, got ", options.causal);
  }
  if (options.deterministic != 0 && options.deterministic != 1) {
    return invalid("deterministic: expected 0 or 1, got ", options.deterministic);
  }
  if (options.batch_invariant != 0 && options.batch_invariant != 1) {
    return invalid("batch_invariant: expected 0 or 1, got ", options.batch_invariant);
  }
  problem->batch_invariant = options.batch_invariant != 0;
  if (options.sm_margin < 0 || options.sm_margin >= kMostSms) {
    return invalid("sm_margin: expected 0 to ", kMostSms - 1, " SMs, got ", options.sm_margin);
  }
  problem->sm_margin = options.sm_margin;
  FA3_TRY(describe_dropout(options, &problem->dropout));
  FA3_TRY(describe_score(options.score, problem));
  FA3_TRY(describe_mask(options, problem));
  FA3_TRY(resolve_threads(options.num_threads, device_type, &problem->num_threads));
  FA3_TRY(resolve_engine(options.engine, &problem->engine));
  if (problem->engine != FA3_ENGINE_AUTO) return {};
  return default_engine(device_type, &problem->engine);
}

}  // namespace fa3::api
