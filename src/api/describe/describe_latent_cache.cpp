// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_latent_cache.h"

#include <cmath>

#include "api/describe/rules/operand_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

constexpr int64_t kAlignment = 16;  // of pages of bytes: what vector loads and TMA take

// Rows of bytes that hold 512 or 448 e4m3, their scales, and 64 bfloat16. All numbers are bytes,
// but for channels.
struct ByteRows {
  fa3_mla_rows format;
  const char* name;
  int64_t bytes;       // a row, with its share of a plane: the tensor's last extent
  int64_t step;        // from row to row within the page
  int64_t latent;      // channels
  int64_t rope;        // where rope channels begin
  bool plane;          // scales lie behind all rows of the page, else `scales` within the row
  int64_t scales;      // likewise
  int64_t scale_step;  // from row to row
  int64_t scale_channels;
  bool e8m0;
};
constexpr ByteRows kByteRows[] = {
    {FA3_MLA_ROWS_GROUP128, "group128", 656, 656, 512, 528, false, 512, 656, 128, false},
    {FA3_MLA_ROWS_V4, "v4", 584, 576, 448, 448, true, 0, 8, 64, true},
    {FA3_MLA_ROWS_TOKEN, "token", 644, 640, 512, 512, true, 0, 4, 512, false},
};

const ByteRows* byte_rows(int32_t format) {
  for (const ByteRows& rows : kByteRows) {
    if (rows.format == format) return &rows;
  }
  return nullptr;
}

// (pages, P, row) of a tensor that may have a head dimension of 1.
Status without_head(Named named, fa3_tensor* rows) {
  *rows = named.tensor;
  if (rows->rank == 4) {
    if (rows->shape[2] != 1) {
      return invalid(named.name, ": expected 1 latent head, got ", rows->shape[2],
                     "; attention() takes several, with v a view of k");
    }
    rows->rank = 3;
    rows->shape[2] = rows->shape[3];
    rows->stride[2] = rows->stride[3];
  }
  const Named three{named.name, *rows};
  FA3_TRY(check_form(three, 3, "(pages, rows of a page, row)"));
  FA3_TRY(check_last_stride(three));
  if (rows->shape[1] < 1)
    return invalid(named.name, ": expected pages of at least one row, got none");
  return {};
}

Status choose_format(Named rows, int32_t* format) {
  if (*format < FA3_MLA_ROWS_AUTO || *format > FA3_MLA_ROWS_TOKEN) {
    return invalid("rows: expected a value of fa3_mla_rows, got ", *format);
  }
  const int64_t extent = rows.tensor.shape[2];
  const bool is_bytes = rows.tensor.dtype == FA3_FLOAT8_E4M3;
  const bool chosen = *format != FA3_MLA_ROWS_AUTO;
  if (!chosen) {
    *format = !is_bytes ? FA3_MLA_ROWS_LATENT : FA3_MLA_ROWS_TENSOR;
    for (const ByteRows& known : kByteRows) {
      if (is_bytes && known.bytes == extent) *format = known.format;
    }
  }
  if (*format == FA3_MLA_ROWS_LATENT) {
    FA3_TRY(check_dtype(rows, {DType::float32, DType::float16, DType::bfloat16}));
  } else {
    FA3_TRY(check_dtype(rows, {DType::float8_e4m3}));
  }
  if (const ByteRows* known = byte_rows(*format)) {
    return check_extent(rows, 2, known->bytes, "bytes of a row");
  }
  if (extent == kLatentValueDim || extent == kLatentValueDim + kRopeDim) return {};
  const char* sizes = !is_bytes ? "576 or 512 channels"
                      : chosen  ? "576 or 512 bytes, since they have one scale a tensor"
                                : "656, 584, 644, 576 or 512 bytes";
  return invalid(rows.name, ": expected rows of ", sizes, ", got ", extent);
}

// Rows that hold their scales: their tensor's strides say where pages begin, and nothing else.
Status describe_byte_rows(Named rows, const ByteRows& format, LatentCache* cache) {
  const fa3_tensor& t = rows.tensor;
  if (t.shape[1] > 1 && t.stride[1] != format.bytes) {
    return invalid(rows.name, ": expected ", format.name, " rows ", format.bytes,
                   " bytes apart, got ", t.stride[1]);
  }
  const bool several = t.shape[0] > 1;
  const bool misplaced = reinterpret_cast<uintptr_t>(t.data) % kAlignment != 0;
  if (misplaced || (several && t.stride[0] % kAlignment != 0)) {
    return invalid(rows.name, ": expected an address and a page stride that are multiples of ",
                   kAlignment, " bytes, got a stride of ", t.stride[0],
                   "; empty_cache() makes such");
  }
  if (several && t.stride[0] < format.bytes * t.shape[1]) {
    return invalid(rows.name, ": expected pages at least ", format.bytes * t.shape[1],
                   " bytes apart, got ", t.stride[0]);
  }
  auto* const data = static_cast<std::byte*>(t.data);
  const int64_t page = stride_of(t, 0);
  const int64_t scales = format.plane ? format.step * t.shape[1] : format.scales;
  const auto behind = [&](int64_t bytes) { return data == nullptr ? nullptr : data + bytes; };
  cache->latent = {.data = data,
                   .dtype = DType::float8_e4m3,
                   .page_stride = page,
                   .row_stride = format.step,
                   .channels = format.latent,
                   .scales = {.data = behind(scales),
                              .page_stride = page,
                              .row_stride = format.scale_step,
                              .channels = format.scale_channels,
                              .e8m0 = format.e8m0,
                              .written = true}};
  cache->rope = {.data = behind(format.rope),
                 .dtype = DType::bfloat16,
                 .page_stride = page,
                 .row_stride = format.step,
                 .channels = kRopeDim};
  return {};
}

RowPart part_of(const fa3_tensor& rows, int64_t first, int64_t channels) {
  const auto dtype = static_cast<DType>(rows.dtype);
  const int64_t size = size_of(dtype);
  auto* const data = static_cast<std::byte*>(rows.data);
  return {.data = data == nullptr ? nullptr : data + first * size,
          .dtype = dtype,
          .page_stride = stride_of(rows, 0) * size,
          .row_stride = stride_of(rows, 1) * size,
          .channels = channels};
}

Status describe_rope(Named rope, Named rows, Purpose purpose, RowPart* part) {
  fa3_tensor t;
  FA3_TRY(without_head(rope, &t));
  const Named three{rope.name, t};
  for (int dim : {0, 1})
    FA3_TRY(check_extent(three, dim, rows.tensor.shape[dim], "that of the cache"));
  FA3_TRY(check_extent(three, 2, kRopeDim, "rope channels"));
  FA3_TRY(check_same_dtype(three, rows));
  FA3_TRY(check_same_device(three, rows));
  if (purpose == Purpose::call) FA3_TRY(check_data(three));
  *part = part_of(t, 0, kRopeDim);
  return {};
}

Status describe_scales(Named descale, Named rows, Purpose purpose, LatentCache* cache) {
  if (!present(descale.tensor)) {
    return invalid(descale.name,
                   ": expected float32 (1) or (2) for rows of one scale a tensor, got none");
  }
  FA3_TRY(check_form(descale, 1, "(1), or (2) for latent and rope channels"));
  FA3_TRY(check_dtype(descale, {DType::float32}));
  FA3_TRY(check_last_stride(descale));
  const int64_t count = descale.tensor.shape[0];
  if (count != 1 && count != 2) {
    return invalid(descale.name, ": expected 1 scale, or 2 for latent and rope channels, got ",
                   count);
  }
  FA3_TRY(check_same_device(descale, rows));
  if (purpose == Purpose::call) {
    FA3_TRY(check_data(descale));
    if (descale.tensor.device_type == FA3_CPU) {
      const auto* scales = static_cast<const float*>(descale.tensor.data);
      for (int64_t i = 0; i < count; ++i) {
        if (std::isfinite(scales[i]) && scales[i] > 0) continue;
        return invalid(descale.name, ": expected finite scales > 0, got ", scales[i], " at ", i);
      }
    }
  }
  auto* const data = static_cast<std::byte*>(descale.tensor.data);
  const auto behind = [&](int64_t n) { return data == nullptr ? nullptr : data + n * 4; };
  cache->latent.scales = {.data = behind(0), .channels = kLatentValueDim};
  cache->rope.scales = {.data = behind(count - 1), .channels = kRopeDim};
  return {};
}

}  // namespace

Status describe_latent_cache(LatentCacheNames names, const fa3_mla_cache& given, Purpose purpose,
                             LatentCache* cache, int32_t* format) {
  fa3_tensor t;
  FA3_TRY(without_head({names.cache, given.rows}, &t));
  const Named rows{names.cache, t}, rope{names.rope, given.rope};
  const Named descale{names.descale, given.descale};
  *format = given.format;
  FA3_TRY(choose_format(rows, format));
  if (purpose == Purpose::call) FA3_TRY(check_data(rows));
  cache->pages = t.shape[0];
  cache->page_size = t.shape[1];
  const bool is_tensor = *format == FA3_MLA_ROWS_TENSOR;
  if (!is_tensor && present(given.descale)) {
    return invalid(descale.name, ": expected none for rows that hold their scales or have none, ",
                   "got one");
  }
  if (const ByteRows* known = byte_rows(*format)) {
    if (present(given.rope)) {
      return invalid(rope.name, ": expected none for ", known->name,
                     " rows, which hold their rope channels, got one");
    }
    return describe_byte_rows(rows, *known, cache);
  }
  cache->latent = part_of(t, 0, kLatentValueDim);
  const bool in_rows = t.shape[2] > kLatentValueDim;
  if (in_rows && present(given.rope)) {
    return invalid(rope.name, ": expected none for rows of 576 channels, got one");
  }
  if (in_rows) cache->rope = part_of(t, kLatentValueDim, kRopeDim);
  if (present(given.rope)) FA3_TRY(describe_rope(rope, rows, purpose, &cache->rope));
  return is_tensor ? describe_scales(descale, rows, purpose, cache) : Status{};
}

Status check_float(Named named) {
  return check_dtype(named, {DType::float32, DType::float16, DType::bfloat16});
}

Status check_numbers(Named named, int64_t count, const fa3_tensor& like, Purpose purpose) {
  FA3_TRY(check_form(named, 1, "(rows)"));
  FA3_TRY(check_dtype(named, {DType::int32}));
  FA3_TRY(check_last_stride(named));
  FA3_TRY(check_extent(named, 0, count, "rows"));
  FA3_TRY(check_same_device(named, {"cache", like}));
  return purpose == Purpose::call ? check_data(named) : Status{};
}

Status check_none(Named named, const char* since) {
  if (!present(named.tensor)) return {};
  return invalid(named.name, ": expected none ", since, ", got one");
}

}  // namespace fa3::api
