// SPDX-License-Identifier: Apache-2.0
#include "api/describe/rules/quantization_rules.h"

#include <cmath>

#include "api/describe/rules/operand_rules.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/quantization.h"

namespace fa3::api {

static_assert(kDescaleRows == FA3_DESCALE_ROWS);

namespace {

Status refuse_beside(Named extra, Named operand) {
  if (!present(extra.tensor)) return {};
  return invalid(extra.name, ": expected it only with ", operand.name, " in float8, got ",
                 name_of(static_cast<DType>(operand.tensor.dtype)), "; leave it out");
}

Status check_scales(Named named, const Descales<const float>& scales, const QuantizedShape& shape,
                    const Lengths& lengths) {
  if (lengths.total == 0) return {};
  const int64_t batch = scales.scaling == Scaling::per_tensor ? 1 : shape.batch;
  const int64_t heads = scales.scaling == Scaling::per_tensor ? 1 : shape.heads;
  for (int64_t b = 0; b < batch; ++b) {
    const bool per_block = scales.scaling == Scaling::per_block;
    const int64_t blocks = per_block ? descale_blocks(lengths.rows_of(b).used) : 1;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t block = 0; block < blocks; ++block) {
        const float scale = *scales.at(b, head, block);
        if (std::isfinite(scale) && scale > 0) continue;
        return invalid(named.name, ": expected finite scales > 0, got ", scale, " for batch ", b,
                       ", head ", head, ", block ", block);
      }
    }
  }
  return {};
}

}  // namespace

Status describe_quantization(const QuantizedOperand& operand, const QuantizedShape& shape,
                             const Lengths& lengths, Purpose purpose, Quantization* result) {
  const auto& [tensor, descale, mean] = operand;
  if (!is_float8(static_cast<DType>(tensor.tensor.dtype))) {
    FA3_TRY(refuse_beside(descale, tensor));
    return refuse_beside(mean, tensor);
  }
  if (present(descale.tensor)) {
    FA3_TRY(check_descale(descale, shape, purpose));
    result->descale = descales<const float>(descale.tensor);
    if (purpose == Purpose::call && shape.tensor.device_type == FA3_CPU) {
      FA3_TRY(check_scales(descale, result->descale, shape, lengths));
    }
  }
  if (present(mean.tensor)) {
    FA3_TRY(check_mean(mean, shape, purpose));
    result->mean = channel_means<const float>(mean.tensor);
  }
  return {};
}

Status check_descale(Named named, const QuantizedShape& of, Purpose purpose) {
  const fa3_tensor& t = named.tensor;
  if (t.rank < 1 || t.rank > 3) {
    return invalid(named.name, ": expected rank 1 (1), 2 (batch, heads) or 3 (batch, heads, blocks",
                   " of ", FA3_DESCALE_ROWS, " rows), got rank ", t.rank, " ", shape_text(t));
  }
  FA3_TRY(check_form(named, t.rank, "(1), (batch, heads) or (batch, heads, blocks)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  FA3_TRY(check_same_device(named, {"its tensor", of.tensor}));
  if (t.rank == 1) {
    FA3_TRY(check_extent(named, 0, 1, "one scale for the whole tensor"));
  } else {
    FA3_TRY(check_extent(named, 0, of.batch, "batch"));
    FA3_TRY(check_extent(named, 1, of.heads, "heads"));
  }
  if (t.rank == 3 && t.shape[2] < descale_blocks(of.rows)) {
    return invalid(named.name, ": expected at least ", descale_blocks(of.rows), " blocks of ",
                   FA3_DESCALE_ROWS, " rows for ", of.rows, " rows, got ", t.shape[2],
                   " in dimension 2 of ", shape_text(t));
  }
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_mean(Named named, const QuantizedShape& of, Purpose purpose) {
  FA3_TRY(check_form(named, 3, "(batch, heads, dim)"));
  FA3_TRY(check_dtype(named, {DType::float32}));
  FA3_TRY(check_last_stride(named));
  FA3_TRY(check_extent(named, 0, of.batch, "batch"));
  FA3_TRY(check_extent(named, 1, of.heads, "heads"));
  FA3_TRY(check_extent(named, 2, of.dim, "head dim"));
  FA3_TRY(check_same_device(named, {"its tensor", of.tensor}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

}  // namespace fa3::api
