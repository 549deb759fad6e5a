// SPDX-License-Identifier: Apache-2.0
#include "api/describe/rules/operand_rules.h"

#include "api/describe/rules/overlap.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/threads.h"

namespace fa3::api {
namespace {

constexpr int64_t kMaxThreads = 1024;

}  // namespace

int64_t stride_of(const fa3_tensor& tensor, int dim) {
  return dim >= 0 && tensor.shape[dim] > 1 && has_elements(tensor) ? tensor.stride[dim] : 0;
}

Operand operand(const fa3_tensor& tensor) {
  const int row = tensor.rank - 3;
  return {.data = tensor.data,
          .dtype = static_cast<DType>(tensor.dtype),
          .batch_stride = stride_of(tensor, row - 1),
          .row_stride = stride_of(tensor, row),
          .head_stride = stride_of(tensor, row + 1)};
}

RowScalars row_scalars(const fa3_tensor& tensor) {
  const int head = tensor.rank - 2;
  return {.data = static_cast<float*>(tensor.data),
          .batch_stride = stride_of(tensor, head - 1),
          .head_stride = stride_of(tensor, head),
          .row_stride = stride_of(tensor, head + 1)};
}

Status check_operand(Named named, bool packed, Purpose purpose) {
  FA3_TRY(packed ? check_form(named, 3, "(total, heads, dim), since cu_seqlens is given")
                 : check_form(named, 4, "(batch, seq, heads, dim)"));
  FA3_TRY(check_last_stride(named));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_like(Named named, const fa3_tensor& like, int64_t dim, bool packed, Purpose purpose) {
  FA3_TRY(check_operand(named, packed, purpose));
  if (!packed) FA3_TRY(check_extent(named, 0, like.shape[0], "batch"));
  FA3_TRY(
      check_extent(named, like.rank - 3, like.shape[like.rank - 3], packed ? "total rows" : "seq"));
  FA3_TRY(check_extent(named, like.rank - 2, like.shape[like.rank - 2], "heads"));
  return check_extent(named, like.rank - 1, dim, "head dim");
}

Status check_transposed(Named named) {
  const auto& [name, t] = named;
  FA3_TRY(check_form(named, 4, "(batch, seq, heads, dim)"));
  FA3_TRY(check_dtype(named, {DType::float8_e4m3}));
  if (t.shape[1] > 1 && t.stride[1] != 1 && has_elements(t)) {
    return invalid(name, ": expected stride 1 in dimension 1 of transposed values, got ",
                   t.stride[1], "; fa3_quantize() writes such");
  }
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % FA3_TRANSPOSED_KEYS == 0;
  for (const int dim : {0, 2, 3}) aligned &= stride_of(t, dim) % FA3_TRANSPOSED_KEYS == 0;
  if (aligned) return {};
  return invalid(name, ": expected an address and strides of dimensions 0, 2 and 3 that are ",
                 "multiples of ", FA3_TRANSPOSED_KEYS, ", since it is transposed, got strides ",
                 t.stride[0], ", ", t.stride[2], ", ", t.stride[3]);
}

fa3_tensor rows_of_operand(const fa3_tensor& transposed) {
  fa3_tensor rows = transposed;
  rows.stride[3] = 1;
  return rows;
}

Transposed transposed(const fa3_tensor& tensor) {
  return {.on = true, .channel_stride = stride_of(tensor, 3)};
}

Status check_heads(int64_t heads_q, int64_t heads_k) {
  constexpr const char* kAxes = "; axes are (batch, seq, heads, dim), strides may be any";
  if (heads_k < 1) return invalid("k: expected at least one head, got 0", kAxes);
  if (heads_q < 1) return invalid("q: expected at least one head, got 0", kAxes);
  if (heads_q % heads_k == 0) return {};
  return invalid("q: expected a number of query heads that is a multiple of the ", heads_k,
                 " key/value heads, got ", heads_q, kAxes);
}

Status check_head_dim(const char* name, int64_t dim, int64_t most) {
  if (dim >= 1 && dim <= most) return {};
  return invalid(name, ": expected a head dim in [1, ", most, "], got ", dim);
}

Status check_row_scalars(Named named, const fa3_tensor& q, bool packed, Purpose purpose) {
  const fa3_tensor& lse = named.tensor;
  FA3_TRY(packed ? check_form(named, 2, "(heads, total), since cu_seqlens_q is given")
                 : check_form(named, 3, "(batch, heads, seq)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  if (!packed) FA3_TRY(check_extent(named, 0, q.shape[0], "batch"));
  FA3_TRY(check_extent(named, lse.rank - 2, q.shape[q.rank - 2], "query heads"));
  FA3_TRY(check_extent(named, lse.rank - 1, q.shape[q.rank - 3], packed ? "total rows" : "seq"));
  FA3_TRY(check_same_device(named, {"q", q}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_head_vector(Named named, const fa3_tensor& q, Purpose purpose) {
  FA3_TRY(check_form(named, 1, "(heads)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  FA3_TRY(check_last_stride(named));
  FA3_TRY(check_extent(named, 0, q.shape[q.rank - 2], "query heads"));
  FA3_TRY(check_same_device(named, {"q", q}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_head_matrix(Named named, int64_t batch, const fa3_tensor& q, Purpose purpose) {
  FA3_TRY(check_form(named, 2, "(batch, query heads)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  FA3_TRY(check_extent(named, 0, batch, "batch"));
  FA3_TRY(check_extent(named, 1, q.shape[q.rank - 2], "query heads"));
  FA3_TRY(check_same_device(named, {"q", q}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_output_dtype(Named o, Named q) {
  if (o.tensor.dtype == FA3_FLOAT32) return {};
  if (q.tensor.dtype != FA3_FLOAT8_E4M3) return check_same_dtype(o, q);
  return check_dtype(o, {DType::bfloat16, DType::float16, DType::float32});
}

Status check_flag(const char* name, int32_t flag) {
  if (flag == 0 || flag == 1) return {};
  return invalid(name, ": expected 0 or 1, got ", flag);
}

Status describe_rotary(const RotaryArguments& of, Named rows, int64_t dim, RotaryTables* rotary) {
  const auto& [cos, sin, interleaved] = of;
  if (present(cos.tensor) != present(sin.tensor)) {
    return invalid("rotary_cos, rotary_sin: expected both or neither");
  }
  FA3_TRY(check_flag("rotary_interleaved", interleaved));
  if (!present(cos.tensor)) return {};
  for (const Named& table : {cos, sin}) {
    FA3_TRY(check_form(table, 2, "(positions, pairs)"));
    FA3_TRY(check_last_stride(table));
    FA3_TRY(check_dtype(table, {DType::float32, static_cast<DType>(rows.tensor.dtype)}));
    FA3_TRY(check_same_device(table, rows));
    FA3_TRY(check_data(table));
  }
  FA3_TRY(check_same_dtype(sin, cos));
  for (int i : {0, 1}) FA3_TRY(check_extent(sin, i, cos.tensor.shape[i], "rotary_cos has"));
  const int64_t pairs = cos.tensor.shape[1];
  if (pairs < 1 || 2 * pairs > dim) {
    return invalid(cos.name, ": expected between 1 and ", dim / 2, " pairs of the ", dim,
                   " columns, got ", pairs);
  }
  *rotary = {.cos = cos.tensor.data,
             .sin = sin.tensor.data,
             .dtype = static_cast<DType>(cos.tensor.dtype),
             .cos_stride = stride_of(cos.tensor, 0),
             .sin_stride = stride_of(sin.tensor, 0),
             .pairs = pairs,
             .positions = cos.tensor.shape[0],
             .interleaved = interleaved != 0};
  return {};
}

Status resolve_threads(int32_t asked, int32_t device_type, int* num_threads) {
  if (asked < 0 || asked > kMaxThreads) {
    return invalid("num_threads: expected 0 (all cores) to ", kMaxThreads, ", got ", asked);
  }
  *num_threads = asked > 0 ? asked : device_type == FA3_CPU ? available_threads() : 1;
  return {};
}

Status resolve_engine(int32_t asked, fa3_engine_id* engine) {
  if (asked < FA3_ENGINE_AUTO || asked > FA3_ENGINE_AMPERE) {
    return invalid("engine: expected a value of fa3_engine_id, got ", asked);
  }
  *engine = static_cast<fa3_engine_id>(asked);
  return {};
}

Status check_outputs(std::span<const CallTensor> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].use != kWritten) continue;
    const Named output{tensors[i].name, tensors[i].tensor};
    FA3_TRY(check_distinct_elements(output));
    FA3_TRY(check_no_overlap(output, tensors, kRead));
    FA3_TRY(check_no_overlap(output, tensors.first(i), kWritten));
  }
  return {};
}

Status check_apart(const Memory& workspace, std::span<const CallTensor> tensors) {
  const fa3_tensor bytes{.data = workspace.data,
                         .dtype = FA3_FLOAT8_E4M3,  // of one byte
                         .rank = 1,
                         .shape = {workspace.bytes},
                         .stride = {1}};
  return check_no_overlap({workspace.name, bytes}, tensors, kRead | kWritten | kReadFirst);
}

}  // namespace fa3::api
