// SPDX-License-Identifier: Apache-2.0
//
// One attention problem as data: what to compute, on which layout, from which seed.
#pragma once

#include <fa3/fa3.h>
#include <algorithm>
#include <numeric>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "support/cases/block_mask.h"
#include "support/cases/tensor.h"

namespace fa3::test {

// How one side's sequences lie in its tensor. Dense unless `owned` is set.
struct Side {
  int64_t rows = 0;            // dense: rows of every sequence
  std::vector<int32_t> owned;  // packed: rows of each sequence
  int64_t spare_rows = 0;      // packed: rows of the tensor that no sequence owns
  std::vector<int32_t> used;   // seqused, when not empty

  bool packed() const { return !owned.empty(); }
  int64_t longest() const {
    return packed() ? *std::max_element(owned.begin(), owned.end()) : rows;
  }
  // What bounds a length where the lengths themselves are in device memory.
  int64_t tensor_rows() const {
    return packed() ? std::accumulate(owned.begin(), owned.end(), spare_rows) : rows;
  }
};

struct Sequence {
  int64_t batch = 0;  // entry of the tensor
  int64_t first = 0;  // row
  int64_t used = 0;
};

// How the scores run along the keys, beside their noise. Engines visit blocks of keys from either
// end.
enum class Scores {
  normal,
  huge,       // tens of thousands
  rising,     // linearly, by `amount` natural units from the first key to the last
  falling,    // the same downwards
  step,       // the first half of the keys is higher by `amount`
  first_key,  // one key is higher by `amount`
  last_key,
  nan_query,  // one element that is not finite
  nan_key,
  nan_value,
  inf_query,
  inf_key,
  no_weight,  // every score of one row is -inf
};

// Who shares a scale of a float8 tensor.
enum class Scales { none, tensor, head, block };

// What a case with float8 operands has beside them.
struct Fp8 {
  bool kv = false;    // k and v are float8, whatever q is
  bool e5m2 = false;  // k and v are e5m2, else e4m3
  Scales q = Scales::none, k = Scales::none, v = Scales::none;
  bool q_by_kv_head = false;  // one scale of q for all heads of a group
  bool k_mean = false, v_mean = false;
};

// How many logits a row of the output gate has.
enum class Gate { none, one, full };

struct Case {
  int64_t batch = 1;
  Side q, k;
  int64_t heads_q = 1, heads_k = 1;
  int64_t dim = 64, dim_v = 64;
  fa3_dtype dtype = FA3_FLOAT32;  // of q, and of k and v unless fp8 says otherwise
  Fp8 fp8;
  bool o_float32 = false;
  bool causal = false;
  int64_t left = -1, right = -1;
  int32_t shift = 0;  // of the window
  int64_t chunk = 0;
  MaskForm mask;
  float softcap = 0;
  float scale = FA3_SCALE_AUTO;
  bool sink = false;
  Gate gate = Gate::none;
  fa3_dtype gate_dtype = FA3_FLOAT32;
  bool max_logit = false;
  bool d_lse = false;  // the loss also reads the LSE (backward)
  Layout in = Layout::bshd, out = Layout::bshd;
  double gain = 1;  // of q: large logits
  Scores scores = Scores::normal;
  float amount = 0;
  int num_threads = 2;
  int num_splits = 0;
  bool batch_invariant = false;
  float dropout_p = 0;
  uint64_t dropout_seed = 0, dropout_offset = 0;
  struct {
    int64_t sequence = 0, head = 0, query = 0, key = 0;
  } dropout_origin;
  uint64_t seed = 1;

  bool has_float8() const { return fp8.kv || dtype == FA3_FLOAT8_E4M3; }
  fa3_dtype kv_dtype() const {
    return !fp8.kv ? dtype : fp8.e5m2 ? FA3_FLOAT8_E5M2 : FA3_FLOAT8_E4M3;
  }
  fa3_dtype o_dtype() const {
    return o_float32 ? FA3_FLOAT32 : dtype == FA3_FLOAT8_E4M3 ? FA3_BFLOAT16 : dtype;
  }
  int64_t scales_of_q() const { return fp8.q_by_kv_head ? heads_k : heads_q; }
  Shape q_shape() const { return shape_of(q, heads_q, dim); }
  Shape k_shape() const { return shape_of(k, heads_k, dim); }
  Shape v_shape() const { return shape_of(k, heads_k, dim_v); }
  Shape o_shape() const { return shape_of(q, heads_q, dim_v); }
  Shape lse_shape() const { return shape_of(q, heads_q, 1); }
  Shape gate_shape() const { return shape_of(q, heads_q, gate == Gate::one ? 1 : dim_v); }
  Shape max_logit_shape() const { return {batch, 1, heads_q, 1}; }
  double effective_scale() const;
  int64_t group() const { return heads_q / heads_k; }

  Sequence sequence_q(int64_t b) const { return sequence_of(q, b); }
  Sequence sequence_k(int64_t b) const { return sequence_of(k, b); }

 private:
  Shape shape_of(const Side& side, int64_t heads, int64_t dim) const;
  Sequence sequence_of(const Side& side, int64_t b) const;
};

// A dense case from the numbers that every test gives.
Case dense_case(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q, int64_t heads_k,
                int64_t dim, int64_t dim_v, fa3_dtype dtype = FA3_FLOAT32);

const char* name_of(fa3_dtype dtype);
const char* name_of(Scores scores);

// The contract's words: j >= i + sk - sq - left, j <= i + sk - sq + right, j <= i + sk - sq,
// floor(j / chunk) = floor((i + sk - sq) / chunk).
bool visible(const Case& c, int64_t q_row, int64_t key, int64_t seqlen_q, int64_t seqlen_k);

// What a weight is multiplied by under the case's dropout: 0 or 1 / (1 - p), as fa3_dropout_mask()
// has it; all 1 without. One head of a sequence, (queries, keys).
std::vector<double> dropout_factors(const Case& c, int64_t b, int64_t head, int64_t queries,
                                    int64_t keys);

// Everything needed to write the case down again.
std::string describe(const Case& c);
std::ostream& operator<<(std::ostream& out, const Case& c);

}  // namespace fa3::test
