// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/serving.h"

#include <algorithm>
#include <vector>

#include "engine/cuda/host/needs.h"

namespace fa3::hopper {
namespace {

using cuda::words_of;
using Rows = std::vector<const Row*>;

// "float8 keys and values and dropout"; empty: an ordinary call.
std::string kinds_in(Needs needs) {
  std::string kinds;
  for (; !needs.empty() && cuda::is_kind(needs.first()); needs = needs - Needs{needs.first()}) {
    kinds += concat(kinds.empty() ? "" : " and ", words_of(needs.first()));
  }
  return kinds;
}

std::string advice(Need missing, const Request& r) {
  if (missing == Need::kRowsNot8 || missing == Need::kRowsNot16) {
    return concat(", got ", r.problem.head_dim, " and ", r.problem.head_dim_v);
  }
  const bool may_be_bits = missing == Need::kChunks && r.needs.has(Need::kBlockMask);
  return may_be_bits ? "; put these into the map and its bits" : "";
}

bool offer(const Rows& rows, const Request& r, Needs needs) {
  return std::ranges::any_of(rows, [&](const Row* row) { return offers(*row, r, needs); });
}

// Names the first need that no row offers beside those before it.
std::string reason(const Rows& rows, const Request& r) {
  Needs covered;
  for (Needs left = r.needs; !left.empty(); left = left - Needs{left.first()}) {
    const Need need = left.first();
    if (!offer(rows, r, covered | Needs{need})) {
      const std::string kinds = kinds_in(covered);
      return concat(kinds.empty() ? "no kernel for " : kinds + " beside ", words_of(need),
                    advice(need, r));
    }
    covered = covered | Needs{need};
  }
  int largest = 0;
  for (const Row* row : rows) {
    if (offers(*row, r, r.needs)) largest = std::max(largest, row->kernel.shape.head_dim);
  }
  const std::string kinds = kinds_in(r.needs);
  return concat("no kernel for ", kinds, kinds.empty() ? "" : " and ", "head dims ",
                r.problem.head_dim, " and ", r.problem.head_dim_v, "; the largest have ", largest);
}

Rows rows_with(const auto& has) {
  Rows rows;
  for (const Row& row : kForward) {
    if (has(row)) rows.push_back(&row);
  }
  return rows;
}

}  // namespace

Status check_served(const Request& r) {
  const auto serves = [&](const Row& row) {
    return has_columns(row.kernel, r) && offers(row, r, r.needs);
  };
  if (std::ranges::any_of(kForward, serves)) return {};
  return unsupported(reason(rows_with([](const Row&) { return true; }), r));
}

Status refuse_many_queries(const Request& r) {
  const Rows rows = rows_with([](const Row& row) { return !row.kernel.is_decode(); });
  return unsupported(reason(rows, r), ", where no kernel for few queries takes the call");
}

}  // namespace fa3::hopper
