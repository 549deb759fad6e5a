// SPDX-License-Identifier: Apache-2.0
#include "api/work.h"

#include <algorithm>

#include "core/error.h"
#include "core/mask/visible_pairs.h"

namespace fa3::api {
namespace {

bool readable(const Lengths& lengths, fa3_device_type device) {
  return device == FA3_CPU || (lengths.alike() && !lengths.varlen);
}

std::string lengths_text(const Lengths& q, const Lengths& k) {
  return concat(q.varlen || k.varlen ? " s<=" : " s", q.max, "x", k.max);
}

std::string reach_text(int64_t reach) {
  return reach == MaskRule::kUnbounded ? "all" : std::to_string(reach);
}

std::string mask_text(const Problem& p) {
  std::string text;
  if (p.mask.left == MaskRule::kUnbounded && p.mask.right == 0)
    text += " causal";
  else if (p.mask.left != MaskRule::kUnbounded || p.mask.right != MaskRule::kUnbounded)
    text += concat(" window ", reach_text(p.mask.left), ",", reach_text(p.mask.right));
  if (p.mask.chunk != MaskRule::kNoChunks) text += concat(" chunk ", p.mask.chunk);
  if (p.softcap > 0) text += " softcap";
  if (p.has_sink) text += " sink";
  if (p.key_places.paged()) text += " paged";
  if (p.partial.on) text += " continued";
  return text;
}

// A step of generation: few queries a sequence, and keys of earlier steps.
bool is_decode(const Problem& p) {
  constexpr int64_t kMostQueries = 16;
  return p.lengths_q.max <= kMostQueries && p.lengths_q.max < p.lengths_k.max;
}

Work attention(const char* verb, const Problem& p) {
  const std::string kv = p.kv_dtype == p.dtype ? "" : concat("/", name_of(p.kv_dtype));
  const std::string dv = p.head_dim_v == p.head_dim ? "" : concat("/", p.head_dim_v);
  Work work{.kind = verb,
            .dtype = p.dtype,
            .call = concat(verb, " ", name_of(p.dtype), kv, " b", p.batch, " h", p.heads_q, ":",
                           p.heads_k, lengths_text(p.lengths_q, p.lengths_k), " d", p.head_dim, dv,
                           mask_text(p)),
            .known = readable(p.lengths_q, p.device) && readable(p.lengths_k, p.device)};
  const bool alike = p.lengths_q.alike() && p.lengths_k.alike();
  double pairs = 0, rows_q = 0, rows_k = 0;
  for (int64_t b = 0; work.known && b < (alike ? 1 : p.batch); ++b) {
    const double times = alike ? static_cast<double>(p.batch) : 1;
    const int64_t q = p.lengths_q.rows_of(b).used, k = p.lengths_k.rows_of(b).used;
    pairs += times * static_cast<double>(visible_pairs(p.mask, q, k));
    rows_q += times * static_cast<double>(q);
    rows_k += times * static_cast<double>(k);
  }
  const auto row_bytes = [](int64_t dim, int64_t dim_v, int64_t heads, DType a, DType b) {
    return static_cast<double>(heads * (dim * size_of(a) + dim_v * size_of(b)));
  };
  work.flops = 2 * static_cast<double>((p.head_dim + p.head_dim_v) * p.heads_q) * pairs;
  work.bytes = rows_q * row_bytes(p.head_dim, p.head_dim_v, p.heads_q, p.dtype, p.o.dtype) +
               rows_k * row_bytes(p.head_dim, p.head_dim_v, p.heads_k, p.kv_dtype, p.kv_dtype);
  return work;
}

// The keys that a query has in both caches.
int64_t selected_keys(const MlaProblem& p, int64_t b, int64_t row) {
  int64_t count = 0;
  for (const SelectedKeys* keys : {&p.keys, &p.extra}) {
    if (keys == &p.extra && !p.has_extra) break;
    const int32_t* const slots = keys->of(b, row);
    count += std::count_if(slots, slots + keys->count_of(b, row),
                           [&](int64_t slot) { return keys->cache.has_slot(slot); });
  }
  return count;
}

Work quantizing(const char* verb, const QuantizeProblem& p) {
  Work work{.kind = verb,
            .dtype = p.x.dtype,
            .call = concat(verb, " ", name_of(p.x.dtype), " b", p.batch, " h", p.heads, " s",
                           p.lengths.max, " d", p.head_dim, p.hadamard ? " hadamard" : ""),
            .known = readable(p.lengths, p.device)};
  work.bytes = static_cast<double>(p.lengths.total * p.heads * p.head_dim) *
               static_cast<double>(size_of(p.x.dtype) + size_of(p.y.dtype));
  return work;
}

Work quantizing(const char* verb, std::span<const QuantizeProblem> problems) {
  Work work = quantizing(verb, problems.front());
  for (const QuantizeProblem& p : problems.subspan(1)) {
    const Work more = quantizing(verb, p);
    work.bytes += more.bytes;
    work.known = work.known && more.known;
  }
  if (problems.size() > 1) work.call += concat(" and ", problems.size() - 1, " more");
  return work;
}

}  // namespace

Work work_of(const Problem& p) {
  Work work = attention("forward", p);
  if (is_float8(p.dtype)) {
    work.kind = "fp8";
  } else if (is_decode(p)) {
    work.kind = "decode";
  }
  return work;
}

Work work_of(const BackwardProblem& p) {
  Work work = attention("backward", p);
  work.flops *= 2.5;
  work.bytes *= 2;  // Q, K, V and O are read, dQ, dK and dV written, dO is read
  return work;
}

Work work_of(const QuantizeProblem& p) {
  return quantizing("quantize", p);
}

Work work_of(std::span<const QuantizeProblem> problems) {
  return quantizing("quantize", problems);
}

Work work_of(const DequantizeProblem& problem) {
  return quantizing("dequantize", problem.tensors);
}

Work work_of(const MergeProblem& p) {
  const auto values = static_cast<double>(p.batch * p.rows * p.heads * p.head_dim_v);
  Work work{.kind = "merge",
            .dtype = p.o.dtype,
            .call = concat("merge ", p.num_partials, " of ", name_of(p.o.dtype), " b", p.batch,
                           " h", p.heads, " s", p.rows, " d", p.head_dim_v)};
  work.bytes = values * static_cast<double>(p.num_partials * size_of(p.o_partial.dtype) +
                                            size_of(p.o.dtype));
  return work;
}

Work work_of(const AppendProblem& p) {
  Work work{.kind = "append",
            .dtype = p.dtype,
            .call = concat("append ", name_of(p.dtype), " b", p.batch, " h", p.heads_k, " s",
                           p.lengths_new.max, " d", p.head_dim)};
  work.bytes = 2.0 * static_cast<double>(p.lengths_new.total * p.heads_k * size_of(p.dtype)) *
               static_cast<double>(p.head_dim + p.head_dim_v);
  return work;
}

Work work_of(const MlaProblem& p) {
  const char* const kind = p.sparse ? " sparse" : p.causal ? " causal" : "";
  Work work{.kind = "mla",
            .dtype = p.dtype,
            .call = concat("mla ", name_of(p.dtype), " b", p.batch, " h", p.heads,
                           lengths_text(p.lengths_q, p.lengths_k), " d", p.head_dim, kind),
            .known = p.device == FA3_CPU};
  double pairs = 0, rows = 0;  // a row that several queries choose counts for each
  for (int64_t b = 0; work.known && b < p.batch; ++b) {
    const int64_t q = p.lengths_q.rows_of(b).used;
    if (p.sparse) {
      for (int64_t row = 0; row < q; ++row) rows += static_cast<double>(selected_keys(p, b, row));
      continue;
    }
    const int64_t k = p.lengths_k.rows_of(b).used;
    const MaskRule mask{.right = p.causal ? 0 : MaskRule::kUnbounded};
    pairs += static_cast<double>(visible_pairs(mask, q, k));
    rows += static_cast<double>(k);
  }
  if (p.sparse) pairs = rows;
  work.flops = 2 * static_cast<double>((p.head_dim + kLatentValueDim) * p.heads) * pairs;
  work.bytes =
      rows * static_cast<double>(p.head_dim * size_of(p.keys.cache.latent.dtype)) +
      static_cast<double>(p.lengths_q.total * p.heads) *
          static_cast<double>(p.head_dim * size_of(p.dtype) + kLatentValueDim * size_of(p.o.dtype));
  return work;
}

Work work_of(const MlaBackwardProblem& p) {
  Work work = work_of(static_cast<const MlaProblem&>(p));
  work.kind = "mla_backward";
  work.call += " backward";
  work.flops *= 2.5;
  work.bytes *= 2;
  return work;
}

Work work_of(const MlaAppendProblem& p) {
  return {.kind = "mla_append",
          .dtype = p.dtype,
          .call = concat("mla append ", name_of(p.dtype), " rows ", p.rows),
          .bytes = static_cast<double>(p.rows * p.cache.channels() *
                                       (size_of(p.dtype) + size_of(p.cache.latent.dtype)))};
}

Work work_of(const MlaGatherProblem& p) {
  return {.kind = "mla_gather",
          .dtype = p.o.dtype,
          .call = concat("mla gather ", name_of(p.o.dtype), " rows ", p.rows),
          .bytes = static_cast<double>(p.rows * p.cache.channels() *
                                       (size_of(p.o.dtype) + size_of(p.cache.latent.dtype)))};
}

}  // namespace fa3::api
