// SPDX-License-Identifier: Apache-2.0
#include "support/cases/case.h"

#include <cmath>
#include <numeric>
#include <ostream>
#include <sstream>

namespace fa3::test {
namespace {

void describe_side(std::ostream& out, const char* name, const Side& side) {
  const auto list = [&](const std::vector<int32_t>& lengths) {
    out << "{";
    for (size_t i = 0; i < lengths.size(); ++i) out << (i > 0 ? "," : "") << lengths[i];
    out << "}";
  };
  out << " s" << name << "=";
  side.packed() ? list(side.owned) : (void)(out << side.rows);
  if (side.spare_rows > 0) out << "+" << side.spare_rows;
  if (side.used.empty()) return;
  out << " used_" << name << "=";
  list(side.used);
}

}  // namespace

double Case::effective_scale() const {
  if (scale != FA3_SCALE_AUTO) return double{scale};
  return double{1 / std::sqrt(static_cast<float>(dim))};  // the contract: a float32 number
}

Shape Case::shape_of(const Side& side, int64_t heads, int64_t dim) const {
  return {side.packed() ? 1 : batch, side.tensor_rows(), heads, dim};
}

Sequence Case::sequence_of(const Side& side, int64_t b) const {
  Sequence sequence{b, 0, side.rows};
  if (side.packed()) {
    sequence.batch = 0;
    sequence.first = std::accumulate(side.owned.begin(), side.owned.begin() + b, int64_t{0});
    sequence.used = side.owned[static_cast<size_t>(b)];
  }
  if (!side.used.empty()) sequence.used = side.used[static_cast<size_t>(b)];
  return sequence;
}

Case dense_case(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q, int64_t heads_k,
                int64_t dim, int64_t dim_v, fa3_dtype dtype) {
  Case c;
  c.batch = batch;
  c.q.rows = seqlen_q;
  c.k.rows = seqlen_k;
  c.heads_q = heads_q;
  c.heads_k = heads_k;
  c.dim = dim;
  c.dim_v = dim_v;
  c.dtype = dtype;
  return c;
}

const char* name_of(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_FLOAT32:
      return "fp32";
    case FA3_FLOAT16:
      return "fp16";
    case FA3_BFLOAT16:
      return "bf16";
    case FA3_FLOAT8_E4M3:
      return "e4m3";
    case FA3_FLOAT8_E5M2:
      return "e5m2";
    default:
      return "other";
  }
}

const char* name_of(Scores scores) {
  constexpr const char* kNames[] = {"normal",    "huge",     "rising",    "falling", "step",
                                    "first_key", "last_key", "nan_query", "nan_key", "nan_value",
                                    "inf_query", "inf_key",  "no_weight"};
  return kNames[static_cast<size_t>(scores)];
}

bool visible(const Case& c, int64_t q_row, int64_t key, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t diagonal = q_row + seqlen_k - seqlen_q;
  if (c.causal && key > diagonal) return false;
  if (c.left >= 0 && key < diagonal + c.shift - c.left) return false;
  if (c.right >= 0 && key > diagonal + c.shift + c.right) return false;
  if (c.chunk > 0 && (diagonal < 0 || key / c.chunk != diagonal / c.chunk)) return false;
  return true;
}

std::vector<double> dropout_factors(const Case& c, int64_t b, int64_t head, int64_t queries,
                                    int64_t keys) {
  std::vector<double> factors(static_cast<size_t>(queries * keys), 1.0);
  if (c.dropout_p == 0) return factors;
  // Coordinates in the whole that the call may be a part of, as far as the part's end.
  const auto& origin = c.dropout_origin;
  const int64_t sequences = origin.sequence + b + 1, heads = origin.head + head + 1;
  const int64_t rows = origin.query + queries, row_keys = origin.key + keys;
  std::vector<uint8_t> keep(static_cast<size_t>(sequences * heads * rows * row_keys));
  fa3_dropout_mask(c.dropout_p, c.dropout_seed, c.dropout_offset, sequences, heads, rows, row_keys,
                   keep.data());
  const uint8_t* const last = keep.data() + keep.size() - queries * row_keys + origin.key;
  const double units = std::clamp(std::round(c.dropout_p * 65536.0), 1.0, 65535.0);
  const double scale = c.dropout_p < 1 ? 65536 / (65536 - units) : 0;
  for (int64_t i = 0; i < queries * keys; ++i) {
    factors[static_cast<size_t>(i)] = last[i / keys * row_keys + i % keys] * scale;
  }
  return factors;
}

std::string describe(const Case& c) {
  std::ostringstream out;
  out << "b=" << c.batch;
  describe_side(out, "q", c.q);
  describe_side(out, "k", c.k);
  out << " h=" << c.heads_q << "/" << c.heads_k << " d=" << c.dim << "/" << c.dim_v << " "
      << name_of(c.dtype) << (c.o_float32 ? " o=fp32" : "") << (c.causal ? " causal" : "");
  if (c.has_float8()) {
    constexpr const char* kNames[] = {"none", "tensor", "head", "block"};
    const auto name = [&](Scales scales) { return kNames[static_cast<size_t>(scales)]; };
    out << " fp8="
        << (!c.fp8.kv    ? ""
            : c.fp8.e5m2 ? "kv e5m2,"
                         : "kv,")
        << name(c.fp8.q) << "," << name(c.fp8.k) << "," << name(c.fp8.v)
        << (c.fp8.q_by_kv_head ? ",grouped" : "") << (c.fp8.k_mean ? ",k_mean" : "")
        << (c.fp8.v_mean ? ",v_mean" : "");
  }
  if (c.left >= 0 || c.right >= 0)
    out << " window=(" << c.left << "," << c.right << ")+" << c.shift;
  if (c.chunk > 0) out << " chunk=" << c.chunk;
  if (c.mask.on)
    out << " block_mask=" << c.mask.hidden << "," << c.mask.partial
        << (c.mask.by_sequence ? " by sequence" : "") << (c.mask.by_head ? " by head" : "");
  if (c.softcap > 0) out << " softcap=" << c.softcap;
  if (c.gate != Gate::none)
    out << " gate=" << (c.gate == Gate::one ? "one," : "full,") << name_of(c.gate_dtype);
  if (c.max_logit) out << " max_logit";
  if (c.scale != FA3_SCALE_AUTO) out << " scale=" << c.scale;
  out << (c.sink ? " sink" : "") << (c.d_lse ? " d_lse" : "") << " in=" << name_of(c.in)
      << " out=" << name_of(c.out);
  if (c.dropout_p > 0)
    out << " dropout=" << c.dropout_p << ":" << c.dropout_seed << "+" << c.dropout_offset << " at "
        << c.dropout_origin.sequence << "," << c.dropout_origin.head << ","
        << c.dropout_origin.query << "," << c.dropout_origin.key;
  if (c.gain != 1) out << " gain=" << c.gain;
  if (c.scores != Scores::normal) out << " scores=" << name_of(c.scores) << ":" << c.amount;
  if (c.num_splits != 0) out << " splits=" << c.num_splits;
  out << " threads=" << c.num_threads << " seed=" << c.seed;
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << describe(c);
}

}  // namespace fa3::test
