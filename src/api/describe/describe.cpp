// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "api/describe/describe_block_lists.h"
#include "api/describe/describe_block_mask.h"
#include "api/describe/describe_cache.h"
#include "api/describe/describe_lengths.h"
#include "api/describe/describe_options.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "api/describe/rules/quantization_rules.h"
#include "api/describe/rules/tensor_rules.h"
#include "api/dropout_mask.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

constexpr CacheArguments kNoCache = {kAbsent, kAbsent, kAbsent, kAbsent};

CacheArguments cache_of(const fa3_forward_params& params) {
  return {{"page_table", params.page_table},
          {"batch_index", params.batch_index},
          {"left_padding", params.left_padding},
          {"seqused_k", params.options.seqused_k}};
}

// Partial gradients that a caller adds up, as ranks do, are rounded once if they are float32.
Status check_gradient_dtype(Named gradient, Named q) {
  return gradient.tensor.dtype == FA3_FLOAT32 ? Status{} : check_same_dtype(gradient, q);
}

// Added to, a gradient is a sum of parts, which only float32 is wide enough for.
Status check_accumulate(const char* name, int32_t accumulate, Named gradient) {
  if (accumulate != 0 && accumulate != 1) {
    return invalid(name, ": expected 0 or 1, got ", accumulate);
  }
  if (accumulate == 0 || gradient.tensor.dtype == FA3_FLOAT32) return {};
  return invalid(gradient.name, ": expected float32 with ", name, ", got ",
                 name_of(static_cast<DType>(gradient.tensor.dtype)));
}

// 0 or 1, and 1 only where FP8 products read v as it lies.
Status check_v_transposed(const fa3_forward_params& p) {
  if (p.v_transposed != 0 && p.v_transposed != 1) {
    return invalid("v_transposed: expected 0 or 1, got ", p.v_transposed);
  }
  if (p.v_transposed == 0) return {};
  if (p.q.dtype != FA3_FLOAT8_E4M3) {
    return invalid("v_transposed: expected 0 where q, k and v are not all float8_e4m3, got 1");
  }
  for (const Named& lengths :
       {Named{"cu_seqlens_k", p.options.cu_seqlens_k}, Named{"seqused_k", p.options.seqused_k},
        Named{"page_table", p.page_table}, Named{"batch_index", p.batch_index},
        Named{"left_padding", p.left_padding}}) {
    if (present(lengths.tensor)) {
      return invalid(lengths.name, ": expected none with v_transposed, whose sequences have one ",
                     "length and lie in order");
    }
  }
  return check_transposed({"v", p.v});
}

Status check_cache_is_not_packed(const CacheArguments& cache) {
  for (const Named& of_cache : {cache.page_table, cache.batch_index, cache.left_padding}) {
    if (present(of_cache.tensor)) {
      return invalid(of_cache.name, ": expected none, since cu_seqlens_k says where keys lie");
    }
  }
  return {};
}

// Rank 3 is that of packed rows, which callers give without their lengths.
Status check_rows(Named rows, const Named& cu_seqlens, Purpose purpose) {
  const bool packed = present(cu_seqlens.tensor);
  if (!packed && rows.tensor.rank == 3) {
    return invalid(rows.name, ": expected rank 4 (batch, seq, heads, dim), or ", cu_seqlens.name,
                   " beside packed rows (total, heads, dim), got rank 3 ", shape_text(rows.tensor));
  }
  return check_operand(rows, packed, purpose);
}

Status describe_gate(Named gate, const fa3_tensor& q, bool packed, Purpose purpose,
                     Problem* problem) {
  if (!present(gate.tensor)) return {};
  FA3_TRY(check_operand(gate, packed, purpose));
  FA3_TRY(check_dtype(gate, {DType::float32, DType::float16, DType::bfloat16}));
  const int64_t columns = gate.tensor.shape[gate.tensor.rank - 1];
  if (columns != 1 && columns != problem->head_dim_v) {
    return invalid(gate.name, ": expected a last dimension of ", problem->head_dim_v,
                   ", the head dim of v, or of 1, one number a row, got ", columns);
  }
  FA3_TRY(check_like(gate, q, columns, packed, purpose));
  FA3_TRY(check_same_device(gate, {"q", q}));
  problem->gate = {.on = true, .per_row = columns == 1, .logits = operand(gate.tensor)};
  return {};
}

// Everything that forward and backward share: the inputs, the options, o, lse and sink.
template <class Params>
Status describe_common(const Params& params, const CacheArguments& cache, Purpose purpose,
                       Problem* problem) {
  const fa3_options& options = params.options;
  fa3_tensor rows_of_v = params.v;
  if constexpr (requires { params.v_transposed; }) {
    FA3_TRY(check_v_transposed(params));
    if (params.v_transposed != 0) {
      rows_of_v = rows_of_operand(params.v);
      problem->v_transposed = transposed(params.v);
    }
  }
  const Named q{"q", params.q}, k{"k", params.k}, v{"v", rows_of_v}, o{"o", params.o};
  const bool packed_q = present(options.cu_seqlens_q);
  const bool packed_k = present(options.cu_seqlens_k);

  if (packed_k) FA3_TRY(check_cache_is_not_packed(cache));  // before k's rank, which it decides
  FA3_TRY(check_rows(q, {"cu_seqlens_q", options.cu_seqlens_q}, purpose));
  for (const Named& keyed : {k, v}) {
    FA3_TRY(check_rows(keyed, {"cu_seqlens_k", options.cu_seqlens_k}, purpose));
  }
  if (params.q.dtype == FA3_FLOAT8_E5M2) {
    return invalid(
        "q: expected float32, float16, bfloat16 or float8_e4m3, got float8_e5m2, which "
        "is for caches alone: for k and v under wider queries");
  }
  FA3_TRY(check_dtype(q, {DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3}));
  const bool has_scales = requires {
    params.k_descale;
  };
  const bool quantized_cache = has_scales && is_float8(static_cast<DType>(params.k.dtype)) &&
                               params.q.dtype != FA3_FLOAT8_E4M3;
  if (!quantized_cache) FA3_TRY(check_same_dtype(k, q));
  FA3_TRY(check_same_dtype(v, quantized_cache ? k : q));

  const fa3_tensor& qt = params.q;
  const fa3_tensor& kt = params.k;
  problem->heads_q = qt.shape[qt.rank - 2];
  problem->heads_k = kt.shape[kt.rank - 2];
  problem->head_dim = qt.shape[qt.rank - 1];
  problem->head_dim_v = params.v.shape[params.v.rank - 1];
  const bool batch_of_k = !packed_k && !cache.has_entries_of_its_own();
  problem->batch = !packed_q    ? qt.shape[0]
                   : batch_of_k ? kt.shape[0]
                                : std::max<int64_t>(options.cu_seqlens_q.shape[0], 1) - 1;
  problem->dtype = static_cast<DType>(qt.dtype);
  problem->kv_dtype = static_cast<DType>(kt.dtype);

  if (batch_of_k) FA3_TRY(check_extent(k, 0, problem->batch, "batch"));
  FA3_TRY(check_like(v, kt, problem->head_dim_v, packed_k, purpose));
  FA3_TRY(check_extent(k, kt.rank - 1, problem->head_dim, "the head dim of q"));
  FA3_TRY(check_head_dim("q", problem->head_dim));
  FA3_TRY(check_head_dim("v", problem->head_dim_v));
  FA3_TRY(check_heads(problem->heads_q, problem->heads_k));
  FA3_TRY(check_like(o, qt, problem->head_dim_v, packed_q, purpose));
  FA3_TRY(check_output_dtype(o, q));
  for (const Named& same : {k, v, o}) FA3_TRY(check_same_device(same, q));

  const LengthArguments q_arguments{{"cu_seqlens_q", options.cu_seqlens_q},
                                    {"seqused_q", options.seqused_q},
                                    options.max_seqlen_q,
                                    "max_seqlen_q"};
  const LengthArguments k_arguments{{"cu_seqlens_k", options.cu_seqlens_k},
                                    {"seqused_k", options.seqused_k},
                                    options.max_seqlen_k,
                                    "max_seqlen_k"};
  int64_t rows_k = 0;
  FA3_TRY(describe_places(cache, kt, qt, problem->batch, purpose, &problem->key_places, &rows_k));
  FA3_TRY(describe_lengths(q_arguments, qt.shape[qt.rank - 3], qt, problem->batch, purpose,
                           &problem->lengths_q));
  FA3_TRY(describe_lengths(k_arguments, rows_k, qt, problem->batch, purpose, &problem->lengths_k));
  FA3_TRY(describe_padding(cache, qt, purpose, problem));
  const auto keys_of = [&](int64_t b) { return problem->lengths_k.rows_of(b); };
  FA3_TRY(check_places(cache, problem->batch, problem->key_places, keys_of));
  FA3_TRY(describe_options(options, problem->head_dim, qt.device_type, problem));
  FA3_TRY(describe_block_mask(options, qt,
                              {known_rows(problem->lengths_q, packed_q, options.max_seqlen_q),
                               known_rows(problem->lengths_k, packed_k, options.max_seqlen_k)},
                              purpose, problem));

  if (present(params.lse)) {
    FA3_TRY(check_row_scalars({"lse", params.lse}, qt, packed_q, purpose));
    problem->lse = row_scalars(params.lse);
  }
  if (present(params.sink)) {
    FA3_TRY(check_head_vector({"sink", params.sink}, qt, purpose));
    problem->has_sink = true;
    problem->sink = static_cast<const float*>(params.sink.data);
  }
  FA3_TRY(describe_gate({"gate", params.gate}, qt, packed_q, purpose, problem));
  problem->q = operand(params.q);
  problem->k = operand(params.k);
  problem->v = operand(params.v);
  problem->o = operand(params.o);
  problem->device = static_cast<fa3_device_type>(qt.device_type);
  problem->device_index = qt.device_index;
  return {};
}

// K and V that are expanded along their heads (stride 0) are one head that all queries share.
// Scales of float8 may differ by head. A backward has a gradient for each of them.
void join_expanded_heads(Problem* problem) {
  const bool expanded = problem->k.head_stride == 0 && problem->v.head_stride == 0;
  if (expanded && !problem->has_float8()) problem->heads_k = 1;
}

// The result that a forward call goes on from. A row is written after it was read, so that o and
// lse may be exactly the partial ones.
Status describe_partial(const fa3_forward_params& p, Purpose purpose, Problem* problem) {
  const Named o_partial{"o_partial", p.o_partial}, lse_partial{"lse_partial", p.lse_partial};
  if (present(p.o_partial) != present(p.lse_partial)) {
    return invalid("o_partial, lse_partial: expected both or none, got only ",
                   present(p.o_partial) ? "o_partial" : "lse_partial");
  }
  if (!present(p.o_partial)) return {};
  const bool packed = present(p.options.cu_seqlens_q);
  FA3_TRY(check_like(o_partial, p.q, problem->head_dim_v, packed, purpose));
  FA3_TRY(check_dtype(o_partial, {DType::float32}));
  FA3_TRY(check_same_device(o_partial, {"q", p.q}));
  FA3_TRY(check_row_scalars(lse_partial, p.q, packed, purpose));
  if (problem->gate.on) {
    return unsupported("gate: expected none beside o_partial, whose rows a gate would multiply ",
                       "again; gate the merged result");
  }
  problem->partial = {.on = true, .o = operand(p.o_partial), .lse = row_scalars(p.lse_partial)};
  if (purpose == Purpose::query) return {};
  const Named o{"o", p.o}, lse{"lse", p.lse};
  if (!is_same_view(p.o, p.o_partial)) FA3_TRY(check_no_overlap(o, o_partial));
  FA3_TRY(check_no_overlap(o, lse_partial));
  if (!is_same_view(p.lse, p.lse_partial)) FA3_TRY(check_no_overlap(lse, lse_partial));
  return check_no_overlap(lse, o_partial);
}

Status describe_max_logit(Named max_logit, const fa3_tensor& q, Purpose purpose, Problem* problem) {
  const fa3_tensor& t = max_logit.tensor;
  if (!present(t)) return {};
  FA3_TRY(check_head_matrix(max_logit, problem->batch, q, purpose));
  if (problem->score != nullptr) {
    return unsupported(max_logit.name, ": expected none with a score function, whose kernels may ",
                       "begin with what it adds to scale * q.k");
  }
  problem->max_logit = {.on = true,
                        .data = static_cast<float*>(t.data),
                        .batch_stride = stride_of(t, 0),
                        .head_stride = stride_of(t, 1)};
  return {};
}

// Kernels of float8 and of caches have no dropout.
Status check_dropout_can_be(const fa3_forward_params& params, const Problem& problem) {
  if (problem.has_float8()) {
    return unsupported("dropout_p: expected 0 with ", name_of(problem.kv_dtype),
                       ", whose kernels have none, got ", params.options.dropout_p);
  }
  for (const Named& place :
       {Named{"page_table", params.page_table}, Named{"batch_index", params.batch_index}}) {
    if (present(place.tensor)) {
      return unsupported("dropout_p: expected 0 with ", place.name,
                         ", a cache's, through which no gradient goes, got ",
                         params.options.dropout_p);
    }
  }
  return {};
}

// The number of score tiles and rows is counted in 64 bits; refuse what could not be.
Status check_countable(const Problem& problem) {
  int64_t count = 0;
  if (__builtin_mul_overflow(std::max<int64_t>(problem.batch, 1), problem.heads_q, &count) ||
      __builtin_mul_overflow(count, std::max<int64_t>(problem.lengths_q.max, 1), &count) ||
      __builtin_mul_overflow(count, std::max<int64_t>(problem.lengths_k.max, 1), &count)) {
    return invalid("q, k: batch * heads * seqlen_q * seqlen_k overflows 64 bits, got ",
                   problem.batch, " * ", problem.heads_q, " * ", problem.lengths_q.max, " * ",
                   problem.lengths_k.max);
  }
  return {};
}

// What the numbers of q, k and v stand for.
Status describe_quantizations(const fa3_forward_params& p, Purpose purpose, Problem* problem) {
  const Problem& is = *problem;
  const auto rows = [&](const Lengths& lengths, const fa3_tensor& cu_seqlens, int64_t max) {
    return known_rows(lengths, present(cu_seqlens), max);
  };
  QuantizedShape q{.batch = is.batch,
                   .heads = is.heads_q,
                   .rows = rows(is.lengths_q, p.options.cu_seqlens_q, p.options.max_seqlen_q),
                   .dim = is.head_dim,
                   .tensor = p.q};
  const bool grouped = p.q_descale.rank > 1 && p.q_descale.shape[1] == is.heads_k;
  if (grouped) q.heads = is.heads_k;
  QuantizedShape k{.batch = is.batch,
                   .heads = is.heads_k,
                   .rows = rows(is.lengths_k, p.options.cu_seqlens_k, p.options.max_seqlen_k),
                   .dim = is.head_dim,
                   .tensor = p.k};
  QuantizedShape v = k;
  v.dim = is.head_dim_v;
  v.tensor = p.v;
  const Named none{"q_mean", kNoTensor};  // would move each score by another amount
  FA3_TRY(describe_quantization({{"q", p.q}, {"q_descale", p.q_descale}, none}, q, is.lengths_q,
                                purpose, &problem->q_quantization));
  FA3_TRY(describe_quantization({{"k", p.k}, {"k_descale", p.k_descale}, {"k_mean", p.k_mean}}, k,
                                is.lengths_k, purpose, &problem->k_quantization));
  FA3_TRY(describe_quantization({{"v", p.v}, {"v_descale", p.v_descale}, {"v_mean", p.v_mean}}, v,
                                is.lengths_k, purpose, &problem->v_quantization));
  if (grouped) problem->q_quantization.descale.heads_per_scale = is.group();
  return {};
}

}  // namespace

Status describe(const fa3_forward_params& params, Purpose purpose, Problem* problem) {
  const CacheArguments cache = cache_of(params);
  FA3_TRY(describe_common(params, cache, purpose, problem));
  join_expanded_heads(problem);
  FA3_TRY(describe_block_lists(params.options, listed_pass(*problem), purpose, problem));
  if (problem->dropout.on()) FA3_TRY(check_dropout_can_be(params, *problem));
  FA3_TRY(check_countable(*problem));
  FA3_TRY(describe_quantizations(params, purpose, problem));
  if (params.num_splits < 0 || params.num_splits > kMaxSplits) {
    return invalid("num_splits: expected 0 (the library chooses) to ", kMaxSplits, ", got ",
                   params.num_splits);
  }
  problem->num_splits = params.num_splits;
  FA3_TRY(describe_partial(params, purpose, problem));
  FA3_TRY(describe_max_logit({"max_logit", params.max_logit}, params.q, purpose, problem));
  if (purpose == Purpose::query) return {};
  return check_outputs(tensors_of(params));
}

Status describe(const fa3_backward_params& params, Purpose purpose, BackwardProblem* problem) {
  FA3_TRY(describe_common(params, kNoCache, purpose, problem));
  problem->deterministic = params.options.deterministic != 0;
  FA3_TRY(describe_block_lists(params.options, listed_pass(*problem), purpose, problem));
  FA3_TRY(check_countable(*problem));
  const bool packed_q = present(params.options.cu_seqlens_q);
  const bool packed_k = present(params.options.cu_seqlens_k);
  const Named q{"q", params.q};
  const Named d_o{"d_o", params.d_o};
  const Named dq{"dq", params.dq}, dk{"dk", params.dk}, dv{"dv", params.dv};
  if (!present(params.lse)) return invalid("lse: expected the forward's result, got nothing");
  FA3_TRY(check_like(d_o, params.q, problem->head_dim_v, packed_q, purpose));
  FA3_TRY(check_same_dtype(d_o, {"o", params.o}));
  FA3_TRY(check_like(dq, params.q, problem->head_dim, packed_q, purpose));
  FA3_TRY(check_like(dk, params.k, problem->head_dim, packed_k, purpose));
  FA3_TRY(check_like(dv, params.k, problem->head_dim_v, packed_k, purpose));
  for (const Named& gradient : {dq, dk, dv}) FA3_TRY(check_gradient_dtype(gradient, q));
  for (const Named& same : {d_o, dq, dk, dv}) FA3_TRY(check_same_device(same, q));
  if (present(params.dsink) && !present(params.sink)) {
    return invalid("dsink: expected it only together with sink, got dsink alone");
  }
  if (present(params.dsink)) {
    FA3_TRY(check_head_vector({"dsink", params.dsink}, params.q, purpose));
    problem->has_dsink = true;
  }
  if (present(params.d_gate)) {
    const Named d_gate{"d_gate", params.d_gate}, gate{"gate", params.gate};
    if (!problem->gate.on) {
      return invalid("d_gate: expected it only together with gate, got d_gate alone");
    }
    FA3_TRY(check_operand(d_gate, packed_q, purpose));
    FA3_TRY(check_same_dtype(d_gate, gate));
    const int64_t columns = params.gate.shape[params.gate.rank - 1];
    FA3_TRY(check_like(d_gate, params.q, columns, packed_q, purpose));
    FA3_TRY(check_same_device(d_gate, q));
    problem->has_d_gate = true;
    problem->d_gate = operand(params.d_gate);
  }
  FA3_TRY(check_accumulate("accumulate_dq", params.accumulate_dq, dq));
  for (const Named& of_keys : {dk, dv}) {
    FA3_TRY(check_accumulate("accumulate_dkv", params.accumulate_dkv, of_keys));
  }
  if (present(params.d_lse)) {
    FA3_TRY(check_row_scalars({"d_lse", params.d_lse}, params.q, packed_q, purpose));
    problem->has_d_lse = true;
    problem->d_lse = row_scalars(params.d_lse);
  }
  if (purpose == Purpose::call) FA3_TRY(check_outputs(tensors_of(params)));
  problem->d_o = operand(params.d_o);
  problem->dq = operand(params.dq);
  problem->dk = operand(params.dk);
  problem->dv = operand(params.dv);
  problem->dsink = static_cast<float*>(params.dsink.data);
  problem->accumulate_dq = params.accumulate_dq != 0;
  problem->accumulate_dkv = params.accumulate_dkv != 0;
  return {};
}

Status check_workspace(const fa3_forward_params& p, const Memory& workspace) {
  return check_apart(workspace, tensors_of(p));
}

Status check_workspace(const fa3_backward_params& p, const Memory& workspace) {
  return check_apart(workspace, tensors_of(p));
}

}  // namespace fa3::api
