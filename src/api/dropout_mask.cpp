// SPDX-License-Identifier: Apache-2.0
#include "api/dropout_mask.h"

#include "core/dropout/dropout.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {

Status check_probability(float dropout_p) {
  if (dropout_p >= 0.0f && dropout_p <= 1.0f) return {};
  return invalid("dropout_p: expected a probability from 0 to 1, got ", dropout_p);
}

Status write_dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, const MaskPart& part,
                          uint8_t* keep) {
  FA3_TRY(check_probability(dropout_p));
  const auto [batch, heads, seqlen_q, seqlen_k] = part.extents;
  const auto [first_sequence, first_head, first_query, first_key] = part.first;
  int64_t weights = 0;
  if (batch < 0 || heads < 0 || seqlen_q < 0 || seqlen_k < 0 ||
      __builtin_mul_overflow(batch, heads, &weights) ||
      __builtin_mul_overflow(weights, seqlen_q, &weights) ||
      __builtin_mul_overflow(weights, seqlen_k, &weights)) {
    return invalid("dropout_mask: expected extents >= 0 whose product is below 2^63, got ", batch,
                   " * ", heads, " * ", seqlen_q, " * ", seqlen_k);
  }
  constexpr int64_t kMostFirst = int64_t{1} << 62;  // so that no sum of first and extent wraps
  for (const int64_t first : part.first) {
    if (first < 0 || first > kMostFirst) {
      return invalid("first: expected a sequence, head, query and key from 0 to 2^62, got ",
                     first_sequence, ", ", first_head, ", ", first_query, ", ", first_key);
    }
  }
  if (keep == nullptr && weights > 0) {
    return invalid("keep: expected ", weights, " bytes of memory, got a null pointer");
  }
  if (weights == 0) return {};
  const Dropout dropout = {.threshold = dropout_threshold(dropout_p)};
  const PhiloxKey key = dropout_call_key(seed, offset);
  for (int64_t sequence = 0; sequence < batch; ++sequence) {
    for (int64_t h = 0; h < heads; ++h) {
      const DropoutHead head = dropout_head(key, first_sequence + sequence, first_head + h);
      for (int64_t query = 0; query < seqlen_q; ++query) {
        DropoutRow row(dropout, head, first_query + query);
        for (int64_t k = 0; k < seqlen_k; ++k) *keep++ = row.keeps(first_key + k) ? 1 : 0;
      }
    }
  }
  return {};
}

}  // namespace fa3::api
