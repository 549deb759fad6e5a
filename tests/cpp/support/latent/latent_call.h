// SPDX-License-Identifier: Apache-2.0
//
// A call of attention to a latent cache as data, its tensors and what they should give, in double
// precision. Memory ends where a tensor does; all that no valid entry names is NaN: rows behind
// lengths and counts, gaps between pages, the last page of the cache, slot 0 of selected rows.
#pragma once

#include <fa3/mla.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/latent/numbers.h"

namespace fa3::test {

struct LatentCase {
  fa3_mla_rows rows = FA3_MLA_ROWS_LATENT;  // or GROUP128
  fa3_dtype dtype = FA3_BFLOAT16;           // of q, and of LATENT rows
  int dim = 576;
  int64_t tokens = 1, heads = 16, page_size = 64;
  std::vector<int32_t> keys = {100};  // of each sequence: dense
  std::vector<int32_t> queries;       // of each sequence: packed; 3 more rows are nobody's
  int64_t top = -1;                   // indices of a query, if not below 0
  bool has_count = false, no_index_counts = false;
  bool one_page = false;  // is all that the page table names
  bool causal = false, rope_apart = false, query_apart = false, wide_output = true;
  bool sink = false, lse_with_sink = true, infinite_empty_lse = false;
  int num_splits = 0;
  bool batch_invariant = false;
  bool rounded_keys = false;  // bytes times their scale, and scales: to 11 bits, as fp16 has
  float spread = 1;           // of q
  // Scales of rows of bytes: the factor of all, and how many octaves they differ by.
  double scale = 1, scale_octaves = 0;
  bool zero_scales = false;  // of the first group
  uint64_t seed = 1;

  bool sparse() const { return top >= 0; }
  bool bytes() const { return rows == FA3_MLA_ROWS_GROUP128; }
  bool packed() const { return !queries.empty(); }
  int64_t batch() const { return int64_t(keys.size()); }
};

std::string describe(const LatentCase& c);

class LatentCall : PlacedTensors {
 public:
  LatentCall(const LatentCase& call, fa3_device_type memory);

  // Of the engine's memory.
  const fa3_mla_forward_params& params() const { return params_; }
  // Compares what lies in the outputs with what should. "", or what is wrong.
  std::string compare();

 private:
  struct Query {
    int64_t sequence, token, row;  // row: of all rows of queries
  };

  struct Expected {  // of a head of a query
    std::vector<double> o;
    double lse, max;
  };

  int64_t slots() const { return pages_ * c_.page_size; }
  int64_t row_bytes() const;
  std::byte* row_of(int64_t slot);
  void write_row(int64_t slot);
  std::vector<double> key_of(int64_t slot);
  std::vector<int64_t> slots_of(const Query& query) const;
  void fill_keys();
  void fill_indices();
  void describe_params(fa3_device_type memory);
  std::string compare_query(const Query& query);
  Expected expect(const Query& query, int64_t head,
                  const std::vector<std::vector<double>>& keys) const;
  std::string compare_row(const Query& query, int64_t head, const Expected& expected);
  double output(int64_t row, int64_t head, int64_t c) const;

  const LatentCase c_;
  int64_t query_rows_ = 0, pages_ = 0, entries_ = 0;  // entries: of a sequence in the page table
  int64_t page_stride_ = 0;                           // in bytes
  double error_ = 0, size_ = 0;                       // sums of squares, of O
  std::vector<Query> queries_;
  std::vector<std::byte> cache_;
  std::vector<uint16_t> rope_, q_, q_rope_;
  std::vector<int32_t> table_, starts_, indices_, counts_;
  std::vector<float> sink_;
  std::vector<std::byte> o_, lse_, max_;  // as fetched
  size_t first_output_ = 0;               // of memory_
  fa3_mla_forward_params params_;
};

}  // namespace fa3::test
