// SPDX-License-Identifier: Apache-2.0
//
// A normalised, validated attention problem: what every engine receives. Plain data; the API layer
// makes it (api/describe), engines only read it.
#pragma once

#include <fa3/fa3.h>

#include "core/dropout/dropout.h"
#include "core/dtype.h"
#include "core/key_places.h"
#include "core/macros.h"
#include "core/mask/block_mask.h"
#include "core/mask/mask_rule.h"
#include "core/quantization.h"
#include "core/seqlen.h"
#include "core/transposed_values.h"

namespace fa3 {

// A (batch, row, head, dim) operand; strides in elements, the last one is 1. Packed operands have
// batch_stride 0 and rows that count from the start of the tensor (Rows::begin).
struct Operand {
  void* data = nullptr;
  DType dtype = DType::float32;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  template <class T>
  FA3_HD T* at(int64_t batch, int64_t row, int64_t head) const {
    return static_cast<T*>(data) + (batch * batch_stride + row * row_stride + head * head_stride);
  }
  // Like at(), for an element type that is known at run time only.
  void* address(int64_t batch, int64_t row, int64_t head) const {
    const int64_t element = batch * batch_stride + row * row_stride + head * head_stride;
    return static_cast<char*>(data) + element * size_of(dtype);
  }
};

// How transposed values lie: key places are strides of 1, and channels this far apart.
struct Transposed {
  bool on = false;
  int64_t channel_stride = 0;

  template <class T>
  T* at(const Operand& x, int64_t batch, int64_t row, int64_t head, int64_t channel) const {
    return x.at<T>(batch, 0, head) + (channel * channel_stride + transposed_place(row));
  }
};

// A row of a sequence's keys or values; rows count as Lengths::rows_of does.
template <class T>
T* row_at(const Operand& keys, const KeyPlaces& places, int64_t b, int64_t row, int64_t kv_head) {
  if (!places.paged()) return keys.at<T>(places.entry_of(b), row, kv_head);
  const int64_t page = places.pages_of(b)[row / places.page_size];
  return keys.at<T>(page, row % places.page_size, kv_head);
}

// A float32 value per (batch, head, row): the LSE, its gradient. Packed: batch_stride 0, as above.
struct RowScalars {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;

  float* at(int64_t batch, int64_t head, int64_t row) const {
    return data + (batch * batch_stride + head * head_stride + row * row_stride);
  }
};

// A result for the same queries over other keys, float32, which a forward call goes on from.
struct PartialResult {
  bool on = false;  // also known to questions, which bring no data
  Operand o;
  RowScalars lse;
};

// Logits of an output gate: O = sigmoid(logit) * attention. The LSE does not change.
struct OutputGate {
  bool on = false;       // also known to questions, which bring no data
  bool per_row = false;  // one logit for all columns of a row, else one for each
  Operand logits;        // float32, float16 or bfloat16
};

// The largest scale * q.k of a sequence and query head over the pairs that lengths and masks leave:
// before softcap, without the sink. -inf where there are none; NaN if one of them is NaN.
struct MaxLogit {
  bool on = false;  // also known to questions, which bring no data
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;

  float* at(int64_t batch, int64_t head) const {
    return data + (batch * batch_stride + head * head_stride);
  }
};

struct Problem {
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_k = 0;
  int64_t head_dim = 0;             // of q and k
  int64_t head_dim_v = 0;           // of v and o
  DType dtype = DType::float32;     // of q
  DType kv_dtype = DType::float32;  // the same, or float8
  Lengths lengths_q, lengths_k;

  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = off
  MaskRule mask;
  BlockMask block_mask;         // besides the rule
  void* block_lists = nullptr;  // of the mask, made before; null: a call makes its own
  Dropout dropout;
  bool batch_invariant = false;

  Operand q, k, v, o;  // paged: k's and v's batch entries are pages
  KeyPlaces key_places;
  Transposed v_transposed;                                      // v's row stride is of no use then
  Quantization q_quantization, k_quantization, v_quantization;  // of those that are float8
  int num_splits = 0;                                           // 0 = the engine chooses
  RowScalars lse;                             // data may be null: not wanted (forward)
  const fa3_score_function* score = nullptr;  // optional
  bool has_sink = false;                      // also known to questions, which bring no data
  const float* sink = nullptr;                // (heads_q), optional

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;  // at least 1
  int sm_margin = 0;    // SMs to leave free
  fa3_engine_id engine = FA3_ENGINE_AUTO;
  PartialResult partial;  // forward
  OutputGate gate;        // never beside a partial result
  MaxLogit max_logit;     // forward; never beside a score function

  // Whether the mask shows a pair that lies in the rule's range.
  bool shows(int64_t b, int64_t head, int64_t q_row, int64_t key) const {
    return !block_mask.on || block_mask.visible(b, head, q_row, key);
  }
  bool has_float8() const { return is_float8(kv_dtype); }  // q may have another type
  int64_t group() const { return heads_q / heads_k; }      // query heads that share a key head

  template <class T>
  const T* key_row(const Operand& keys, int64_t b, int64_t row, int64_t kv_head) const {
    return row_at<T>(keys, key_places, b, row, kv_head);
  }
};

// Backward: the forward's problem (its o and lse are inputs now) and the gradients.
struct BackwardProblem : Problem {
  Operand d_o, dq, dk, dv;  // with a gate, o and d_o are of the gated output
  bool has_d_gate = false;  // also known to questions, which bring no data
  Operand d_gate;           // the gate's shape and type
  bool has_dsink = false;   // also known to questions, which bring no data
  float* dsink = nullptr;   // (heads_q), goes with sink
  bool has_d_lse = false;   // also known to questions, which bring no data
  RowScalars d_lse;         // the LSE's own gradient; data may be null: zero
  bool deterministic = false;
  bool accumulate_dq = false, accumulate_dkv = false;  // to what these hold, in float32

  bool accumulates() const { return accumulate_dq || accumulate_dkv; }

  // Whether a gradient is stored as float32 that the inputs are not.
  bool has_wide_gradients() const {
    return dq.dtype != dtype || dk.dtype != dtype || dv.dtype != dtype;
  }

  // What sums of dS times rows are multiplied by. Softmax over one key is 1 whatever its score:
  // that gradient is 0, where dP and D, sums in different orders, would leave rounding errors.
  float gradient_scale(int64_t seqlen_k) const {
    return seqlen_k == 1 && !has_sink && !has_d_lse ? 0.0f : scale;
  }
};

// To e4m3: see fa3_quantize_params.
struct QuantizeProblem {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  Lengths lengths;
  Operand x, y;
  Transposed y_transposed;
  Rotary rotary;
  bool hadamard = false;
  uint64_t seed = 0;
  bool centred = false;            // also known to questions, which bring no data
  ChannelMeans<float> mean;        // written if centred
  Descales<float> descale;         // written
  int64_t num_descale_blocks = 0;  // of a head's descales, per block: at least enough for its rows

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;
  fa3_engine_id engine = FA3_ENGINE_AUTO;
};

// Partial results over disjoint key sets, to be merged: see fa3_merge_params.
struct MergeProblem {
  int64_t num_partials = 0;
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim_v = 0;
  Operand o_partial;  // float32
  RowScalars lse_partial;
  int64_t o_partial_stride = 0;    // between partials, in elements
  int64_t lse_partial_stride = 0;  // between partials, in elements
  Operand o;
  RowScalars lse;  // data may be null: not wanted

  fa3_device_type device = FA3_CPU;
  int device_index = 0;
  int num_threads = 1;

  PartialResult other;  // one more, which lies elsewhere
};

}  // namespace fa3
