// SPDX-License-Identifier: Apache-2.0
//
// Rows of a latent cache as the numbers that they stand for, and back. Every format goes through
// read_row() and its writer: what a row is made of is data (core/latent.h).
#pragma once

#include <fa3/status.h>

#include <cstring>

#include "core/latent.h"

namespace fa3::cpu {

inline float scale_of(const RowScales& scales, const std::byte* at, int64_t group) {
  if (!scales.e8m0) {
    float scale;
    std::memcpy(&scale, at + group * int64_t{sizeof(float)}, sizeof(float));
    return scale;
  }
  const auto exponent = static_cast<uint32_t>(at[group]);
  if (exponent == 0xff) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent << 23);  // 0: 2^-127
}

template <class Real, class T>
void read_part(const RowPart& part, int64_t page, int64_t row, Real* out) {
  const T* const numbers = reinterpret_cast<const T*>(part.at(page, row));
  if (part.scales.data == nullptr) {
    for (int64_t c = 0; c < part.channels; ++c) out[c] = static_cast<Real>(to_float(numbers[c]));
    return;
  }
  const std::byte* const scales = part.scales.at(page, row);
  for (int64_t c = 0; c < part.channels; c += part.scales.channels) {
    const auto scale = static_cast<Real>(scale_of(part.scales, scales, c / part.scales.channels));
    for (int64_t i = c; i < c + part.scales.channels; ++i) {
      out[i] = static_cast<Real>(to_float(numbers[i])) * scale;
    }
  }
}

// The K of a slot: in float each product with a scale is rounded, in double exact.
template <class Real>
void read_row(const LatentCache& cache, int64_t slot, Real* out) {
  const int64_t page = slot / cache.page_size, row = slot % cache.page_size;
  for (const RowPart* part : {&cache.latent, &cache.rope}) {
    if (part->channels == 0) continue;
    const auto read = [&]<class T>(T) { read_part<Real, T>(*part, page, row, out); };
    part->dtype == DType::float8_e4m3 ? read(Float8E4M3{}) : visit_dtype(part->dtype, read);
    out += part->channels;
  }
}

// Goes through the keys of one query: with pages the first `end` of its sequence, else those that
// its indices name.
class KeyWalk {
 public:
  KeyWalk(const MlaProblem& problem, int64_t b, int64_t row, int64_t end)
      : problem_(problem), b_(b), row_(row), end_(end), keys_(&problem.keys) {
    if (problem.sparse) end_ = keys_->count_of(b, row);
  }

  // False behind the last key.
  bool next(const LatentCache** cache, int64_t* slot) {
    while (true) {
      while (at_ == end_) {
        if (!problem_.has_extra || keys_ == &problem_.extra) return false;
        keys_ = &problem_.extra;
        at_ = 0;
        end_ = keys_->count_of(b_, row_);
      }
      *cache = &keys_->cache;
      const int64_t at = at_++;
      if (!problem_.sparse) {
        const int64_t page_size = keys_->cache.page_size;
        *slot = problem_.places.pages_of(b_)[at / page_size] * page_size + at % page_size;
        return true;
      }
      *slot = keys_->of(b_, row_)[at];
      if (keys_->cache.has_slot(*slot)) return true;
    }
  }

 private:
  const MlaProblem& problem_;
  int64_t b_, row_, end_;
  const SelectedKeys* keys_;
  int64_t at_ = 0;
};

// What the sink makes of O, and of the LSE. lse: without it.
inline double sink_factor(double lse, float sink) {
  if (std::isnan(sink)) return sink;
  if (std::isinf(sink)) return sink > 0 ? 0 : 1;
  return 1 / (1 + std::exp(sink - lse));
}
float final_lse(const MlaProblem& problem, double lse, int64_t head);

// Rows of packed queries that no sequence has: o = 0, and an LSE without keys.
void fill_unowned_rows(const MlaProblem& problem);

Status run_mla_append(const MlaAppendProblem& problem, void* stream);
Status run_mla_gather(const MlaGatherProblem& problem, void* stream);

}  // namespace fa3::cpu
