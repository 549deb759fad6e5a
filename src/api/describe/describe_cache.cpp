// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_cache.h"

#include "api/describe/describe_lengths.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

Status check_page_table(Named table, const fa3_tensor& q, Purpose purpose) {
  FA3_TRY(check_form(table, 2, "(batch, max_pages)"));
  FA3_TRY(check_dtype(table, {DType::int32}));
  FA3_TRY(check_last_stride(table));
  FA3_TRY(check_same_device(table, {"q", q}));
  return purpose == Purpose::call ? check_data(table) : Status{};
}

}  // namespace

Status describe_places(const CacheArguments& cache, const fa3_tensor& k, const fa3_tensor& q,
                       int64_t batch, Purpose purpose, KeyPlaces* places, int64_t* rows) {
  const fa3_tensor& table = cache.page_table.tensor;
  *rows = k.shape[k.rank - 3];
  places->entries = k.rank == 4 ? k.shape[0] : batch;
  if (cache.paged()) {
    FA3_TRY(check_page_table(cache.page_table, q, purpose));
    if (!cache.indexed()) FA3_TRY(check_extent(cache.page_table, 0, batch, "batch"));
    places->page_size = *rows;
    if (places->page_size < 1) return invalid("k: expected pages of at least one row, got none");
    if (__builtin_mul_overflow(table.shape[1], places->page_size, rows)) {
      return invalid("page_table: max_pages times the rows of a page overflows 64 bits");
    }
    places->page_table = static_cast<const int32_t*>(table.data);
    places->entries = table.shape[0];
    places->pages = k.shape[0];
    places->table_stride = table.shape[0] > 1 ? table.stride[0] : 0;
  }
  if (cache.indexed()) {
    FA3_TRY(check_length_array(cache.batch_index, batch, q, purpose));
    places->batch_index = static_cast<const int32_t*>(cache.batch_index.tensor.data);
    places->indexed = true;
  }
  places->elsewhere = cache.has_entries_of_its_own() || present(cache.left_padding.tensor);
  return {};
}

Status describe_padding(const CacheArguments& cache, const fa3_tensor& q, Purpose purpose,
                        Problem* problem) {
  const fa3_tensor& padding = cache.left_padding.tensor;
  if (!present(padding)) return {};
  FA3_TRY(check_length_array(cache.left_padding, problem->batch, q, purpose));
  const fa3_tensor& seqused = cache.seqused_k.tensor;
  if (readable(padding) && (!present(seqused) || readable(seqused))) {
    for (int64_t b = 0; b < problem->batch; ++b) {
      const int64_t skipped = static_cast<const int32_t*>(padding.data)[b];
      const int64_t used = problem->lengths_k.rows_of(b).used;
      if (skipped < 0 || skipped > used) {
        return invalid("left_padding: expected a number in [0, ", used, "] for sequence ", b,
                       ", which has that many keys, got ", skipped);
      }
    }
  }
  problem->lengths_k.left_padding = static_cast<const int32_t*>(padding.data);
  problem->lengths_k.varlen = true;
  problem->lengths_k.padded_left = true;
  return {};
}

Status check_places(const CacheArguments& cache, int64_t batch, const KeyPlaces& places,
                    const std::function<Rows(int64_t b)>& rows_of) {
  const fa3_tensor& table = cache.page_table.tensor;
  if (readable(cache.batch_index.tensor)) {
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t entry = places.batch_index[b];
      if (!places.has_entry(entry)) {
        return invalid("batch_index: expected an entry in [0, ", places.entries, ") of ",
                       cache.paged() ? "page_table" : "k", " for sequence ", b, ", got ", entry);
      }
    }
  }
  if (!readable(table)) return {};
  for (int64_t b = 0; b < batch; ++b) {
    const Rows rows = rows_of(b);
    const int32_t* pages = places.pages_of(b);
    const int64_t end = rows.begin + rows.used;
    for (int64_t at = rows.begin / places.page_size; at * places.page_size < end; ++at) {
      if (!places.has_page(pages[at])) {
        return invalid("page_table: expected a page in [0, ", places.pages, ") of k at entry (",
                       places.entry_of(b), ", ", at, "), which sequence ", b, " uses, got ",
                       pages[at]);
      }
    }
  }
  return {};
}

}  // namespace fa3::api
