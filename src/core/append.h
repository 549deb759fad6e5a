// SPDX-License-Identifier: Apache-2.0
//
// New rows of keys and values on their way into a cache, validated: see fa3_append_params.
#pragma once

#include "core/problem.h"

namespace fa3 {

// A rotary embedding (RoFormer, arXiv 2104.09864) of the first 2 * pairs columns of a row.
struct RotaryTables {
  const void* cos = nullptr;  // (positions, pairs)
  const void* sin = nullptr;
  DType dtype = DType::float32;
  int64_t cos_stride = 0, sin_stride = 0;  // from one position to the next
  int64_t pairs = 0;                       // 0: no rotation
  int64_t positions = 0;
  bool interleaved = false;  // pairs are columns 2 i and 2 i + 1, else i and i + pairs
};

struct AppendProblem {
  int64_t batch = 0;
  int64_t heads_k = 0, heads_q = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  DType dtype = DType::float32;                // of the new rows
  DType cache_dtype = DType::float32;          // the same, or float8
  Descales<const float> k_descale, v_descale;  // of a float8 cache
  Operand k_cache, v_cache;                    // paged: batch entries are pages
  KeyPlaces places;
  int64_t room = 0;  // rows of a sequence
  Operand k, v;      // new rows
  Lengths lengths_new;
  const int32_t* seqused = nullptr;  // (batch): rows in use before the call

  bool rotates_queries = false;
  Operand q, q_rotated;
  Lengths lengths_q;
  RotaryTables rotary;
  const int32_t* first_position = nullptr;  // (batch)
  bool queries_share_position = false;

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;
};

// What rows of a sequence and head are divided by on their way into a cache.
inline FA3_HD float divisor_of(const Descales<const float>& scales, int64_t b, int64_t head) {
  return scales.data == nullptr ? 1.0f : *scales.at(b, head, 0);
}

}  // namespace fa3
