// SPDX-License-Identifier: Apache-2.0
// Caches: where a sequence's keys and values lie (page_table, batch_index), and from which row on
// they count (left_padding). Validated where the arrays can be read.
#pragma once

#include <functional>

#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"

namespace fa3::api {

struct CacheArguments {
  Named page_table, batch_index, left_padding, seqused_k;

  bool paged() const { return present(page_table.tensor); }
  bool indexed() const { return present(batch_index.tensor); }
  // k's first extent counts something else than sequences.
  bool has_entries_of_its_own() const { return paged() || indexed(); }
};

// Before the lengths are known: forms and extents, and the rows that a sequence has room for.
Status describe_places(const CacheArguments& cache, const fa3_tensor& k, const fa3_tensor& q,
                       int64_t batch, Purpose purpose, KeyPlaces* places, int64_t* rows);

// After them: left padding, and every number that a call follows to the rows it reads or writes.
Status describe_padding(const CacheArguments& cache, const fa3_tensor& q, Purpose purpose,
                        Problem* problem);
Status check_places(const CacheArguments& cache, int64_t batch, const KeyPlaces& places,
                    const std::function<Rows(int64_t b)>& rows_of);

}  // namespace fa3::api
