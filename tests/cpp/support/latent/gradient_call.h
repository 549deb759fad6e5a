// SPDX-License-Identifier: Apache-2.0
//
// A call of fa3_mla_backward() as data, its tensors and what they should give, in double precision.
// Memory ends where a tensor does; rows of the cache that no valid index names are NaN.
#pragma once

#include <fa3/mla.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/latent/numbers.h"

namespace fa3::test {

struct GradientCase {
  fa3_dtype dtype = FA3_BFLOAT16;  // of q, cache, o and d_o
  int dim = 576;
  int64_t batch = 0;  // 0: one query a row
  int64_t tokens = 2, heads = 16, page_size = 64;
  int64_t rows = 100;      // of the cache that indices may name; rounded up to pages
  int64_t gap = 0;         // of each 64 indices, so many from the left name no row
  int64_t top = 100;       // indices of a query
  bool has_count = false;  // of each query
  bool one_row = false;    // is all that indices name
  bool sink = false, lse_with_sink = true, has_d_lse = false;
  float all_sinks = 0;  // not 0: of all heads, far above the scores
  bool wide = false;    // dq and d_cache in float32
  bool deterministic = false;
  float scale = 0;   // 0: dim^-0.5
  float spread = 1;  // of q
  float of_d_o = 1;  // spread of d_o
  uint64_t seed = 1;

  int64_t queries() const { return (batch == 0 ? 1 : batch) * tokens; }
};

std::string describe(const GradientCase& c);

class GradientCall : PlacedTensors {
 public:
  GradientCall(const GradientCase& call, fa3_device_type memory);

  // Of the engine's memory.
  const fa3_mla_backward_params& params() const { return params_; }
  // Compares what lies in the outputs with what should. "", or what is wrong.
  std::string compare();
  // What lies in the outputs: the bits of dq, d_cache and, with a sink, dsink.
  std::vector<std::byte> gradients() const;
  // Of each number of dq and d_cache, the gaps between pages too: whether it is finite.
  std::vector<bool> are_finite() const;
  // The largest error of dq and d_cache that compare() has found, relative to their sizes.
  double error() const { return error_; }

 private:
  std::vector<double> numbers(size_t output, int32_t dtype) const;
  int64_t slots() const { return pages_ * c_.page_size; }
  std::vector<int64_t> slots_of(int64_t query) const;
  void fill();
  void compute(int64_t query, int64_t head);
  void describe_params(fa3_device_type memory);
  std::string compare_all(const char* what, const std::vector<double>& right,
                          const std::vector<double>& found, const std::vector<bool>& counts,
                          double size);

  const GradientCase c_;
  const double scale_;
  int64_t pages_ = 0;
  std::vector<uint16_t> q_, cache_, o_, d_o_;  // cache: with a row of NaN behind each page
  std::vector<int32_t> indices_, counts_;
  std::vector<float> sink_, lse_, d_lse_;
  std::vector<double> dq_, d_cache_, dsink_;  // as they should be; d_cache without gaps
  std::vector<bool> has_keys_, is_named_;     // queries; rows of the cache
  size_t first_output_ = 0;                   // of memory_
  double error_ = 0;
  fa3_mla_backward_params params_;
};

}  // namespace fa3::test
