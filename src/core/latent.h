// SPDX-License-Identifier: Apache-2.0
//
// Latent caches of MLA and what is done with them, validated: see fa3/mla.h. A format of rows is
// data: two parts, each with its places and its scales.
#pragma once

#include <fa3/mla.h>

#include "core/append.h"
#include "core/problem.h"

namespace fa3 {

constexpr int64_t kLatentValueDim = 512;  // V is the first channels of K
constexpr int64_t kRopeDim = 64;

// The scale of channel c of a row lies (c / channels)-th behind `page_stride * page + row_stride *
// row`; strides in bytes.
struct RowScales {
  std::byte* data = nullptr;  // null: all are 1
  int64_t page_stride = 0, row_stride = 0;
  int64_t channels = 1;  // neighbours that share one
  bool e8m0 = false;     // a byte, 2^(byte - 127); else a float32
  bool written = false;  // by an append; else the caller's

  FA3_HD std::byte* at(int64_t page, int64_t row) const {
    return data + (page * page_stride + row * row_stride);
  }
};

// Some channels of each row; strides in bytes.
struct RowPart {
  std::byte* data = nullptr;
  DType dtype = DType::bfloat16;
  int64_t page_stride = 0, row_stride = 0;
  int64_t channels = 0;
  RowScales scales;

  FA3_HD std::byte* at(int64_t page, int64_t row) const {
    return data + (page * page_stride + row * row_stride);
  }
};

struct LatentCache {
  int64_t pages = 0;
  int64_t page_size = 1;  // rows
  RowPart latent, rope;   // a row is the channels of both

  int64_t channels() const { return latent.channels + rope.channels; }
  bool has_slot(int64_t slot) const { return slot >= 0 && slot / page_size < pages; }
};

// The keys of each query as slots of a cache, page * page_size + row; strides in elements.
struct SelectedKeys {
  LatentCache cache;
  const int32_t* indices = nullptr;
  int64_t num_indices = 0;  // of a query
  int64_t batch_stride = 0, row_stride = 0;
  const int32_t* count = nullptr;  // optional: how many, from the left
  int64_t count_batch_stride = 0, count_row_stride = 0;

  FA3_HD const int32_t* of(int64_t b, int64_t row) const {
    return indices + (b * batch_stride + row * row_stride);
  }
  FA3_HD int64_t count_of(int64_t b, int64_t row) const {
    if (count == nullptr) return num_indices;
    const int64_t asked = count[b * count_batch_stride + row * count_row_stride];
    return asked < 0 ? 0 : asked < num_indices ? asked : num_indices;
  }
};

struct MlaProblem {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::float32;  // of q
  Lengths lengths_q, lengths_k;  // keys: of dense calls
  Operand q, q_rope;
  int64_t q_rope_dim = 0;    // channels that q_rope has; 0: q has all
  bool sparse = false;       // keys by indices, else by pages
  bool has_extra = false;    // sparse alone
  SelectedKeys keys, extra;  // dense: the cache of `keys` alone
  KeyPlaces places;          // dense
  float scale = 1.0f;
  bool causal = false;
  const float* sink = nullptr;  // (heads), optional
  bool lse_with_sink = true;
  float empty_lse = 0;
  Operand o;
  RowScalars lse, max;  // data may be null: not wanted
  int num_splits = 0;   // 0 = the engine chooses
  bool batch_invariant = false;

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;
  fa3_engine_id engine = FA3_ENGINE_AUTO;
};

// Gradients of a sparse call to one cache: its o and lse are inputs.
struct MlaBackwardProblem : MlaProblem {
  Operand d_o, dq;
  Operand d_cache;         // (page, row of it)
  RowScalars d_lse;        // data may be null: zero
  float* dsink = nullptr;  // (heads), goes with sink; optional
  bool deterministic = false;
};

struct MlaAppendProblem {
  LatentCache cache;
  int64_t rows = 0;
  DType dtype = DType::float32;  // of c_kv, k_pe and q_pe
  const void *c_kv = nullptr, *k_pe = nullptr;
  int64_t c_kv_stride = 0, k_pe_stride = 0;  // in elements
  const int32_t *slots = nullptr, *positions = nullptr;
  RotaryTables rotary;
  fa3_mla_scaling scaling = FA3_MLA_SCALING_POW2;
  int64_t heads = 0;  // of q_pe; 0: there is none
  Operand q_pe, q_pe_rotated;

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;
};

struct MlaGatherProblem {
  LatentCache cache;
  int64_t rows = 0;
  const int32_t* slots = nullptr;
  Operand o;

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;
};

}  // namespace fa3
