// SPDX-License-Identifier: Apache-2.0
#include "api/quantization_rules.h"

#include "api/operand_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {

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

Descales<float> descales(const fa3_tensor& tensor) {
  constexpr Scaling kByRank[] = {Scaling::per_tensor, Scaling::per_tensor, Scaling::per_head,
                                 Scaling::per_block};
  const bool one = tensor.rank < 2;
  return {.data = static_cast<float*>(tensor.data),
          .scaling = kByRank[tensor.rank],
          .batch_stride = one ? 0 : stride_of(tensor, 0),
          .head_stride = one ? 0 : stride_of(tensor, 1),
          .block_stride = tensor.rank < 3 ? 0 : stride_of(tensor, 2)};
}

ChannelMeans<float> channel_means(const fa3_tensor& tensor) {
  return {.data = static_cast<float*>(tensor.data),
          .batch_stride = stride_of(tensor, 0),
          .head_stride = stride_of(tensor, 1)};
}

}  // namespace fa3::api
