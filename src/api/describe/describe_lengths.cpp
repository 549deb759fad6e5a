// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_lengths.h"

#include <algorithm>

#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

Status check_cu_seqlens(Named named, int64_t batch, int64_t total) {
  const auto* starts = static_cast<const int32_t*>(named.tensor.data);
  if (starts[0] != 0) return invalid(named.name, ": expected to start with 0, got ", starts[0]);
  for (int64_t b = 0; b < batch; ++b) {
    if (starts[b + 1] < starts[b]) {
      return invalid(named.name, ": expected values that never decrease, got ", starts[b], " then ",
                     starts[b + 1], " at entry ", b + 1);
    }
  }
  if (starts[batch] > total) {
    return invalid(named.name, ": expected to end within the ", total, " rows of its tensor, got ",
                   starts[batch]);
  }
  return {};
}

Status check_seqused(Named named, const Lengths& lengths, int64_t batch) {
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t used = lengths.seqused[b];
    const int64_t owned = lengths.rows_of(b).owned;
    if (used < 0 || used > owned) {
      return invalid(named.name, ": expected a length in [0, ", owned, "] for sequence ", b,
                     ", got ", used);
    }
  }
  return {};
}

}  // namespace

// A length array. It lives where the tensors do; in host memory its values are validated.
Status check_length_array(Named named, int64_t count, const fa3_tensor& q, Purpose purpose) {
  FA3_TRY(check_form(named, 1, "(batch), or (batch + 1) for cu_seqlens"));
  FA3_TRY(check_dtype(named, {DType::int32}));
  FA3_TRY(check_last_stride(named));
  FA3_TRY(check_extent(named, 0, count, "entries"));
  FA3_TRY(check_same_device(named, {"q", q}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

bool readable(const fa3_tensor& tensor) {
  return tensor.data != nullptr && tensor.device_type == FA3_CPU;
}

Status describe_lengths(const LengthArguments& arguments, int64_t rows, const fa3_tensor& q,
                        int64_t batch, Purpose purpose, Lengths* lengths) {
  const auto& [cu_seqlens, seqused, declared_max, max_name] = arguments;
  if (declared_max < 0) return invalid(max_name, ": expected >= 0, got ", declared_max);
  lengths->max = rows;
  lengths->total = rows;
  lengths->varlen = present(cu_seqlens.tensor) || present(seqused.tensor);
  lengths->in_one_tensor = present(cu_seqlens.tensor);
  if (present(cu_seqlens.tensor)) {
    FA3_TRY(check_length_array(cu_seqlens, batch + 1, q, purpose));
    lengths->cu_seqlens = static_cast<const int32_t*>(cu_seqlens.tensor.data);
    if (declared_max > 0) lengths->max = std::min(rows, declared_max);
  } else if (__builtin_mul_overflow(batch, rows, &lengths->total)) {
    return invalid("q, k: batch times seq overflows 64 bits");
  }
  if (readable(cu_seqlens.tensor)) {
    FA3_TRY(check_cu_seqlens(cu_seqlens, batch, rows));
    lengths->max = 0;
    for (int64_t b = 0; b < batch; ++b) {
      lengths->max = std::max(lengths->max, lengths->rows_of(b).owned);
    }
  }
  if (present(seqused.tensor)) {
    FA3_TRY(check_length_array(seqused, batch, q, purpose));
    lengths->seqused = static_cast<const int32_t*>(seqused.tensor.data);
    const bool starts_readable = !present(cu_seqlens.tensor) || readable(cu_seqlens.tensor);
    if (readable(seqused.tensor) && starts_readable) {
      FA3_TRY(check_seqused(seqused, *lengths, batch));
    }
  }
  return {};
}

int64_t known_rows(const Lengths& lengths, bool packed, int64_t declared_max) {
  const bool bounded = !packed || lengths.packed() || declared_max > 0;
  return bounded ? lengths.max : 0;
}

}  // namespace fa3::api
