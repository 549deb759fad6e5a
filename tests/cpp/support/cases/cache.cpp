// SPDX-License-Identifier: Apache-2.0
#include "support/cases/cache.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <ostream>

#include "support/random.h"

namespace fa3::test {
namespace {

constexpr int64_t kSpareEntries = 2;
constexpr int64_t kSparePages = 3;

std::vector<int32_t> shuffled(int64_t count, Random* random) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (size_t i = numbers.size(); i > 1; --i) {
    std::swap(numbers[i - 1], numbers[static_cast<size_t>(random->below(int64_t(i)))]);
  }
  return numbers;
}

// Where row `row` of the cache's entry `entry` lies.
struct Place {
  int64_t batch, row;
};
Place place_of(const Inputs& inputs, int64_t page_size, int64_t entry, int64_t row) {
  if (page_size == 0) return {entry, row};
  return {inputs.page_table[static_cast<size_t>(entry * inputs.max_pages + row / page_size)],
          row % page_size};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const CacheForm& form) {
  return out << "pages of " << form.page_size << (form.indexed ? ", indexed" : "")
             << (form.padded_left ? ", padded left" : "");
}

Cached in_cache(const Case& c, const Inputs& inputs, const CacheForm& form) {
  Random random(c.seed + static_cast<uint64_t>(form.page_size));
  Cached cached{.c = c, .inputs = inputs};
  Inputs& to = cached.inputs;
  const int64_t padding = form.padded_left ? 7 : 0;
  const int64_t rows = c.k.rows + padding;
  const int64_t entries = c.batch + (form.indexed ? kSpareEntries : 0);

  if (form.indexed) {
    to.batch_index = shuffled(entries, &random);
    to.batch_index.resize(static_cast<size_t>(c.batch));
  }
  const auto entry_of = [&](int64_t b) {
    return form.indexed ? int64_t{to.batch_index[static_cast<size_t>(b)]} : b;
  };
  for (int64_t b = 0; b < c.batch && form.padded_left; ++b) {
    to.left_padding.push_back(static_cast<int32_t>(random.between(0, padding)));
  }
  const auto first_row = [&](int64_t b) {
    return form.padded_left ? int64_t{to.left_padding[static_cast<size_t>(b)]} : 0;
  };
  if (form.padded_left || form.page_size > 0) {
    cached.c.k.used.clear();
    for (int64_t b = 0; b < c.batch; ++b) {
      cached.c.k.used.push_back(static_cast<int32_t>(first_row(b) + c.sequence_k(b).used));
    }
  }

  Shape shape{entries, rows, c.heads_k, c.dim};
  if (form.page_size > 0) {
    const int64_t used_pages = (rows + form.page_size - 1) / form.page_size;
    to.max_pages = used_pages + 1;
    shape.batch = c.batch * used_pages + kSparePages;
    shape.rows = form.page_size;
    to.page_table.assign(static_cast<size_t>(entries * to.max_pages), -7);
    const std::vector<int32_t> numbers = shuffled(shape.batch, &random);
    size_t next = 0;
    for (int64_t b = 0; b < c.batch; ++b) {
      int32_t* pages = to.page_table.data() + entry_of(b) * to.max_pages;
      const int64_t first = first_row(b) / form.page_size;
      const int64_t end = first_row(b) + c.sequence_k(b).used;
      for (int64_t at = first; at * form.page_size < end; ++at) pages[at] = numbers[next++];
    }
  }
  to.k = Tensor(shape, c.kv_dtype(), c.in);
  shape.dim = c.dim_v;
  to.v = Tensor(shape, c.kv_dtype(), c.in);
  for (Tensor* tensor : {&to.k, &to.v}) {
    tensor->fill_guards(std::numeric_limits<float>::quiet_NaN());
    for (int64_t b = 0; b < tensor->shape().batch; ++b) {
      for (int64_t row = 0; row < tensor->shape().rows; ++row) {
        tensor->fill_row(b, row, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t row = 0; row < c.sequence_k(b).used; ++row) {
      const Place at = place_of(to, form.page_size, entry_of(b), first_row(b) + row);
      for (int64_t head = 0; head < c.heads_k; ++head) {
        for (int64_t col = 0; col < c.dim; ++col) {
          to.k.set(at.batch, at.row, head, col, inputs.k.get(b, row, head, col));
        }
        for (int64_t col = 0; col < c.dim_v; ++col) {
          to.v.set(at.batch, at.row, head, col, inputs.v.get(b, row, head, col));
        }
      }
    }
  }
  return cached;
}

}  // namespace fa3::test
