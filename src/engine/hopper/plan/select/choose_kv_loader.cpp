// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/plan/select/select.h"

#include <algorithm>
#include <numeric>

namespace fa3::hopper {
namespace {

// Boxes of fewer rows of a page are slower than cp.async (docs/lab/decoding.md): of tiles,
// and of the stages of a decode kernel's warps.
constexpr int kLeastBoxRows = 64;
constexpr int kLeastStageBoxRows = 16;

// Boxes begin at multiples of their rows, in a page and in a tile; left padding begins anywhere.
int page_box_rows(const KeyPlaces& places, bool padded_left, int rows) {
  if (!places.paged()) return rows;
  return padded_left ? 1 : int(std::gcd(places.page_size, int64_t{rows}));
}

// For cp.async, 16 bytes at a time. A unit that divides both strides lets few bits hold a row's
// place. False: they do not, or rows end within 16 bytes.
bool describe_cp_async_rows(const TensorSpan& t, int64_t columns, CpAsyncRows* rows) {
  const int64_t page = t.batches > 1 ? t.batch_stride : 0, row = t.rows > 1 ? t.row_stride : 0;
  const int64_t unit = std::max<int64_t>(1, std::gcd(page, row));
  const int64_t last = (t.batches - 1) * (page / unit) + (t.rows - 1) * (row / unit);
  *rows = {.data = static_cast<const unsigned char*>(t.data),
           .head_bytes = t.head_stride * t.element_bytes,
           .unit_bytes = uint32_t(unit * t.element_bytes),
           .page_units = uint32_t(page / unit),
           .row_units = uint32_t(row / unit),
           .columns = int(t.columns)};
  return last <= INT32_MAX && unit * t.element_bytes <= UINT32_MAX && columns % kCopyColumns == 0;
}

bool describe_cp_async_rows(const ForwardCall& call, CpAsyncKeys* keys) {
  const int64_t columns_v = std::max(call.head_dim_v, call.v.columns);  // of all launches
  return describe_cp_async_rows(call.k, call.k.columns, &keys->k) &&
         describe_cp_async_rows(call.v, columns_v, &keys->v);
}

}  // namespace

bool has_cp_async_rows(const ForwardCall& call) {
  CpAsyncKeys keys{};
  return describe_cp_async_rows(call, &keys);
}

int kv_box_rows(const Kernel& c, const ForwardCall& call) {
  if (c.is_decode()) return page_box_rows(call.places, false, decode_shape(c).stage_keys);
  return page_box_rows(call.places, call.lengths_k.padded_left, c.shape.block_n);
}

bool has_small_boxes(const Kernel& c, const ForwardCall& call) {
  return kv_box_rows(c, call) < std::min(kLeastBoxRows, c.shape.block_n);
}

// A box has whole columns of all slabs, if these lie behind each other as in a stage.
bool fills_stages_by_tma(const Kernel& c, const ForwardCall& call) {
  if (!decode_shape(c).may_use_tma) return false;
  const int rows = kv_box_rows(c, call);
  const bool is_wide = call.k.columns == c.shape.head_dim && call.v.columns == c.shape.head_dim_v;
  return is_wide && (rows == decode_shape(c).stage_keys ||
                     (rows >= kLeastStageBoxRows && c.tiles_in_smem().loaded_k.slabs() == 1));
}

// Tiles of 64 rows wait for memory alone: cp.async keeps more on its way than TMA does. Under
// larger tiles its instructions take time from the softmax, which small boxes alone are worth; but
// kernels that decode have no other loader, and start sooner than that costs.
CpAsyncKeys cp_async_keys(const Kernel& c, const ForwardCall& call) {
  const int64_t page_size = call.places.paged() ? call.places.page_size : INT32_MAX;
  CpAsyncKeys keys{.page_size = unsigned(page_size),
                   .by_page_size = Divisor::of(unsigned(page_size)),
                   .num_pages = int(call.k.batches)};
  const bool is_faster = c.is_decode()
                             ? !fills_stages_by_tma(c, call)
                             : c.is_stream_k() || c.consumers() == 1 || has_small_boxes(c, call);
  keys.active = c.may_use_cp_async() && is_faster && describe_cp_async_rows(call, &keys);
  return keys;
}

}  // namespace fa3::hopper
