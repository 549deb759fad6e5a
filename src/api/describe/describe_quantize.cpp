// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_quantize.h"

#include <algorithm>
#include <vector>

#include "api/describe/describe_lengths.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/quantization_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

// One of the two tables: (positions, pairs of channels).
Status check_rotary(Named named, const QuantizedShape& x, Purpose purpose) {
  FA3_TRY(check_form(named, 2, "(positions, half of the rotated channels)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  FA3_TRY(check_last_stride(named));
  FA3_TRY(check_same_device(named, {"x", x.tensor}));
  const int64_t* shape = named.tensor.shape;
  if (shape[0] < x.rows) {
    return invalid(named.name, ": expected at least ", x.rows, " positions, one for each row of x",
                   ", got ", shape[0]);
  }
  if (shape[1] < 1 || 2 * shape[1] > x.dim) {
    return invalid(named.name, ": expected 1 to ", x.dim / 2, " pairs of x's ", x.dim,
                   " channels, got ", shape[1], " in dimension 1");
  }
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status describe_rotary(const fa3_quantize_params& p, const QuantizedShape& x, Purpose purpose,
                       Rotary* rotary) {
  const Named cos{"rotary_cos", p.rotary_cos}, sin{"rotary_sin", p.rotary_sin};
  if (!present(cos.tensor) && !present(sin.tensor)) return {};
  if (!present(cos.tensor) || !present(sin.tensor)) {
    return invalid("rotary_cos, rotary_sin: expected both or neither, got ",
                   present(cos.tensor) ? cos.name : sin.name, " alone");
  }
  for (const Named& table : {cos, sin}) FA3_TRY(check_rotary(table, x, purpose));
  FA3_TRY(check_extent(sin, 1, cos.tensor.shape[1], "the pairs of rotary_cos"));
  *rotary = {.cos = static_cast<const float*>(cos.tensor.data),
             .sin = static_cast<const float*>(sin.tensor.data),
             .cos_stride = stride_of(cos.tensor, 0),
             .sin_stride = stride_of(sin.tensor, 0),
             .dim = 2 * cos.tensor.shape[1],
             .interleaved = p.rotary_interleaved != 0};
  return {};
}

// Sequences of one length, whose rows lie side by side.
Status check_y_transposed(const fa3_quantize_params& p) {
  for (const Named& lengths : {Named{"cu_seqlens", p.cu_seqlens}, Named{"seqused", p.seqused}}) {
    if (present(lengths.tensor)) {
      return invalid(lengths.name, ": expected none with transposed, whose sequences have one ",
                     "length");
    }
  }
  return check_transposed({"y", p.y});
}

// All that is written: whole 16 rows of a channel, if they lie side by side.
fa3_tensor written_y(const fa3_quantize_params& p) {
  fa3_tensor y = p.y;
  if (p.transposed != 0) y.shape[1] = transposed_places(y.shape[1]);
  return y;
}

// All but which tensors are written.
Status describe_either_way(const fa3_quantize_params& p, Purpose purpose,
                           QuantizeProblem* problem) {
  FA3_TRY(check_flag("transposed", p.transposed));
  if (p.transposed != 0) {
    FA3_TRY(check_y_transposed(p));
    problem->y_transposed = transposed(p.y);
  }
  const fa3_tensor rows_of_y = p.transposed != 0 ? rows_of_operand(p.y) : p.y;
  const Named x{"x", p.x}, y{"y", rows_of_y};
  const bool packed = present(p.cu_seqlens);
  FA3_TRY(check_operand(x, packed, purpose));
  FA3_TRY(check_dtype(x, {DType::float32, DType::float16, DType::bfloat16}));
  const int64_t dim = p.x.shape[p.x.rank - 1];
  constexpr int64_t kMaxDim = 512;  // of the GPU's quantizer
  FA3_TRY(check_head_dim("x", dim, kMaxDim));
  FA3_TRY(check_like(y, p.x, dim, packed, purpose));
  FA3_TRY(check_dtype(y, {DType::float8_e4m3}));
  FA3_TRY(check_same_device(y, x));

  const int64_t batch = packed ? std::max<int64_t>(p.cu_seqlens.shape[0], 1) - 1 : p.x.shape[0];
  const LengthArguments lengths{
      {"cu_seqlens", p.cu_seqlens}, {"seqused", p.seqused}, p.max_seqlen, "max_seqlen"};
  FA3_TRY(
      describe_lengths(lengths, p.x.shape[p.x.rank - 3], p.x, batch, purpose, &problem->lengths));
  problem->batch = batch;
  problem->heads = p.x.shape[p.x.rank - 2];
  problem->head_dim = dim;

  const QuantizedShape shape{batch, problem->heads,
                             known_rows(problem->lengths, packed, p.max_seqlen), dim, p.x};
  const Named descale{"descale", p.descale}, mean{"mean", p.mean};
  FA3_TRY(check_descale(descale, shape, purpose));
  if (present(p.mean)) FA3_TRY(check_mean(mean, shape, purpose));
  for (const auto& [name, flag] :
       {std::pair{"hadamard", p.hadamard}, {"rotary_interleaved", p.rotary_interleaved}}) {
    FA3_TRY(check_flag(name, flag));
  }
  FA3_TRY(describe_rotary(p, shape, purpose, &problem->rotary));
  FA3_TRY(resolve_threads(p.num_threads, p.x.device_type, &problem->num_threads));
  FA3_TRY(resolve_engine(p.engine, &problem->engine));
  problem->x = operand(p.x);
  problem->y = operand(p.y);
  problem->descale = descales<float>(p.descale);
  problem->num_descale_blocks = p.descale.rank == 3 ? p.descale.shape[2] : 1;
  problem->centred = present(p.mean);
  if (problem->centred) problem->mean = channel_means<float>(p.mean);
  problem->hadamard = p.hadamard != 0;
  problem->seed = p.seed;
  problem->device = static_cast<fa3_device_type>(p.x.device_type);
  problem->device_index = p.x.device_index;
  return {};
}

}  // namespace

Status describe(const fa3_quantize_params& p, Purpose purpose, QuantizeProblem* problem) {
  FA3_TRY(describe_either_way(p, purpose, problem));
  if (purpose == Purpose::query) return {};
  const fa3_tensor written = written_y(p);
  return check_outputs(tensors_of(p, written));
}

Status describe(const DequantizeParams& p, QuantizeProblem* problem) {
  FA3_TRY(describe_either_way(p, Purpose::call, problem));
  if (problem->rotary.dim > 0) {
    return invalid("rotary_cos, rotary_sin: expected none, since a rotation is not turned back");
  }
  return check_outputs(tensors_of(p));
}

Status check_outputs_together(std::span<const fa3_quantize_params> params) {
  std::vector<fa3_tensor> written;  // CallTensor refers to tensors
  written.reserve(params.size());
  std::vector<CallTensor> tensors;
  for (const fa3_quantize_params& p : params) {
    for (const CallTensor& tensor : tensors_of(p, written.emplace_back(written_y(p)))) {
      tensors.push_back(tensor);
    }
  }
  return check_outputs(tensors);
}

Status check_outputs_together(std::span<const DequantizeParams> params) {
  std::vector<CallTensor> tensors;
  for (const DequantizeParams& p : params) {
    for (const CallTensor& tensor : tensors_of(p)) tensors.push_back(tensor);
  }
  return check_outputs(tensors);
}

Status check_workspace(const fa3_quantize_params& p, const Memory& workspace) {
  const fa3_tensor written = written_y(p);
  return check_apart(workspace, tensors_of(p, written));
}

Status check_workspace(std::span<const fa3_quantize_params> params, const Memory& workspace) {
  for (const fa3_quantize_params& p : params) FA3_TRY(check_workspace(p, workspace));
  return {};
}

}  // namespace fa3::api
