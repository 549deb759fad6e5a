// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/host/forward_call.h"

#include <algorithm>
#include <utility>

namespace fa3::cuda {
namespace {

constexpr int64_t kAnyStride = 16;  // for tensors without elements: maps accept it

// Packed sequences are one long batch entry.
struct Extents {
  int64_t batches;
  int64_t rows;
};
Extents extents_of(const Lengths& lengths, int64_t batch) {
  return lengths.in_one_tensor ? Extents{1, lengths.total} : Extents{batch, lengths.max};
}
Extents key_extents_of(const Problem& p) {
  if (p.key_places.paged()) return {p.key_places.pages, p.key_places.page_size};
  if (p.key_places.elsewhere) return {p.key_places.entries, p.lengths_k.max};
  return extents_of(p.lengths_k, p.batch);
}

// No keys at all: one block of something readable stands in for them, and every score is masked.
// Rows of q have no more columns than q.
TensorSpan in_place_of(const TensorSpan& missing, const TensorSpan& q) {
  TensorSpan readable = q;
  readable.columns = std::min(missing.columns, q.columns);
  return readable;
}

// A side of the mask in 32 bits: unbounded if it reaches over `most` rows. Behind `least` rows of
// the diagonal's other side it hides everything.
int narrow_reach(int64_t reach, int64_t most, int64_t least) {
  if (reach == MaskRule::kUnbounded || reach >= most) return MaskRuleOf<int>::kUnbounded;
  return int(std::max(reach, -least));
}

}  // namespace

MaskRuleOf<int> narrow_mask(const Problem& p) {
  const int64_t queries = p.lengths_q.max, keys = p.lengths_k.max;
  MaskRuleOf<int> mask{.left = narrow_reach(p.mask.left, keys, queries)};
  mask.right = p.mask.right == 0 ? 0 : narrow_reach(p.mask.right, queries, keys);
  // A chunk of all keys hides none, unless there are queries before the first key.
  if (p.mask.chunk < p.lengths_k.max || p.mask.right != 0) {
    mask.chunk = int(std::min(p.mask.chunk, kMaxRows));
  }
  return mask;
}

const char* mask_name(const MaskRuleOf<int>& mask) {
  if (mask.hides_nothing()) return "";
  if (mask.chunk != mask.kNoChunks) return mask.right == 0 ? " causal chunks" : " chunks";
  return mask.left == mask.kUnbounded && mask.right == 0 ? " causal" : " window";
}

Element element_of(DType dtype) {
  return dtype == DType::float16 ? Element::kFp16 : Element::kBf16;
}

bool is_varlen(const Problem& p) {
  return p.lengths_q.varlen || p.lengths_k.varlen || p.key_places.elsewhere;
}

TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns) {
  TensorSpan span{.data = operand.data,
                  .batches = batches,
                  .rows = rows,
                  .heads = heads,
                  .columns = columns,
                  .batch_stride = operand.batch_stride,
                  .row_stride = operand.row_stride,
                  .head_stride = operand.head_stride,
                  .element_bytes = int(size_of(operand.dtype))};
  if (batches == 0 || rows == 0 || heads == 0) {
    span.batch_stride = span.row_stride = span.head_stride = kAnyStride;
  }
  return span;
}

Status check_row_numbers(const Problem& p) {
  if (std::max({extents_of(p.lengths_q, p.batch).rows, extents_of(p.lengths_k, p.batch).rows,
                p.batch, p.key_places.entries, p.key_places.pages}) > kMaxRows) {
    return unsupported("more than 2^30 rows of a sequence or of packed ones, sequences or pages");
  }
  return {};
}

Status check_cache_scales(const Problem& p) {
  if (!p.has_float8()) return {};
  for (const auto& [name, quantization] :
       {std::pair{"k", &p.k_quantization}, {"v", &p.v_quantization}}) {
    if (quantization->descale.scaling == Scaling::per_block) {
      return unsupported(name, "_descale of ", kDescaleRows,
                         " rows each beside 16-bit queries; give one for each sequence and head");
    }
    if (quantization->mean.data != nullptr) return unsupported(name, "_mean beside 16-bit queries");
  }
  return {};
}

GateParams gate_of(const Problem& p, int64_t columns) {
  if (!p.gate.on) return {};
  const Operand& x = p.gate.logits;
  const int64_t any_odd = x.batch_stride | x.row_stride | x.head_stride;
  const bool in_pairs = any_odd % 2 == 0 && p.head_dim_v % 8 == 0 &&
                        reinterpret_cast<uintptr_t>(x.data) % (2 * size_of(x.dtype)) == 0;
  return {.logits = {x.data,
                     {x.batch_stride, x.head_stride, x.row_stride},
                     p.gate.per_row ? 1 : int(columns)},
          .kind = p.gate.per_row ? Gate::kRows
                  : in_pairs     ? Gate::kPairs
                                 : Gate::kColumns,
          .type = x.dtype == DType::float32   ? GateType::kFp32
                  : x.dtype == DType::float16 ? GateType::kFp16
                                              : GateType::kBf16};
}

ForwardCall call_of(const Problem& p) {
  const int64_t columns_v = std::min(p.head_dim_v, kMaxColumnsV);
  const auto [q_batches, q_rows] = extents_of(p.lengths_q, p.batch);
  const auto [k_batches, k_rows] = key_extents_of(p);
  ForwardCall call{
      .q = span_of(p.q, q_batches, q_rows, p.heads_q, p.head_dim),
      .k = span_of(p.k, k_batches, k_rows, p.heads_k, p.head_dim),
      .v = span_of(p.v, k_batches, k_rows, p.heads_k, columns_v),
      .o = span_of(p.o, q_batches, q_rows, p.heads_q, columns_v),
      .head_dim_v = p.head_dim_v,
      .lse = {p.lse.data, {p.lse.batch_stride, p.lse.head_stride, p.lse.row_stride}},
      .sink = p.sink,
      .scale = p.scale,
      .softcap = p.softcap,
      .mask = narrow_mask(p),
      .block_mask = p.block_mask,
      .block_lists = p.block_lists,
      .dropout = p.dropout,
      .seqlen_q = int(p.lengths_q.max),
      .seqlen_k = int(p.lengths_k.max),
      .varlen = is_varlen(p),
      .sequences = p.batch,
      .lengths_q = p.lengths_q,
      .lengths_k = p.lengths_k,
      .places = p.key_places,
      .heads_per_kv_head = int(p.group()),
      .has_score_function = p.score != nullptr,
      .gate = gate_of(p, columns_v),
      .finds_max_logit = p.max_logit.on,
      .max_logit = {p.max_logit.data, p.max_logit.batch_stride, p.max_logit.head_stride, p.scale}};
  if (p.partial.on) {
    const RowScalars& lse = p.partial.lse;
    const TensorSpan o = span_of(p.partial.o, q_batches, q_rows, p.heads_q, columns_v);
    const int64_t any_odd = o.batch_stride | o.row_stride | o.head_stride;
    call.before = {.o = row_tensor(o),
                   .lse = {lse.data, {lse.batch_stride, lse.head_stride, lse.row_stride}},
                   .pairs = any_odd % 2 == 0 &&
                            reinterpret_cast<uintptr_t>(o.data) % (2 * sizeof(float)) == 0};
  }
  if (p.has_float8()) {
    call.cache_scales = {p.k_quantization.descale, p.v_quantization.descale};
    call.cache_is_e5m2 = p.kv_dtype == DType::float8_e5m2;
  }
  if (k_rows == 0 || k_batches == 0) {
    call.has_keys = false;
    call.k = in_place_of(call.k, call.q);
    call.v = in_place_of(call.v, call.q);
    call.lengths_k.max = 0;
  }
  return call;
}

}  // namespace fa3::cuda
