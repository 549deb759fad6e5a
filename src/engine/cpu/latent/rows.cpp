// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/latent/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/cpu/caches/rotate.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr float kLargestE4M3 = 448.0f;
constexpr float kSmallestOfPow2 = 1e-4f;

// As CUDA's saturating conversion, but that NaN has no sign.
Float8E4M3 saturated(float x) {
  if (std::isnan(x)) return {0x7f};
  if (std::isinf(x)) return {static_cast<uint8_t>(x > 0 ? 0x7e : 0xfe)};
  return from_float<Float8E4M3>(x);
}

// The smallest power of two that is not below x > 0; x where it is not finite.
float power_of_two_from(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits >= 0x7f800000u || (bits & 0x7fffffu) == 0) return x;
  return std::bit_cast<float>((bits & 0x7f800000u) + 0x800000u);
}

// The scale of a group's numbers. Exact scales pass over NaN as fmaxf does; others are NaN with it.
float new_scale(const float* x, int64_t count, fa3_mla_scaling scaling) {
  float largest = 0;
  bool has_nan = false;
  for (int64_t c = 0; c < count; ++c) {
    has_nan |= std::isnan(x[c]);
    if (std::fabs(x[c]) > largest) largest = std::fabs(x[c]);
  }
  switch (scaling) {
    case FA3_MLA_SCALING_EXACT:
      return std::max(largest / kLargestE4M3, kSmallestScale);
    case FA3_MLA_SCALING_POW2_SMALL:
      largest = std::max(largest, kSmallestOfPow2) / kLargestE4M3;
      break;
    default:
      largest = std::max(largest / kLargestE4M3, kSmallestOfPow2);
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : power_of_two_from(largest);
}

// An infinite scale has no e8m0.
std::byte e8m0_of(float scale) {
  return static_cast<std::byte>(std::isfinite(scale) ? std::bit_cast<uint32_t>(scale) >> 23 : 0xff);
}

void write_scaled(const RowPart& part, int64_t page, int64_t row, const float* x,
                  fa3_mla_scaling scaling) {
  auto* const to = reinterpret_cast<Float8E4M3*>(part.at(page, row));
  const RowScales& scales = part.scales;
  std::byte* const at = scales.at(page, row);
  const int64_t groups = part.channels / scales.channels;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * scales.channels;
    const float scale = scales.written ? new_scale(x + first, scales.channels, scaling)
                                       : scale_of(scales, at, group);
    for (int64_t c = first; c < first + scales.channels; ++c) to[c] = saturated(x[c] / scale);
    if (!scales.written) continue;
    if (scales.e8m0) {
      at[group] = e8m0_of(scale);
    } else {
      std::memcpy(at + group * int64_t{sizeof(float)}, &scale, sizeof(float));
    }
  }
  // Bytes between the scales of two rows are padding.
  if (scales.written && scales.e8m0) {
    std::fill(at + groups, at + scales.row_stride, std::byte{});
  }
}

void write_part(const RowPart& part, int64_t page, int64_t row, const float* x,
                fa3_mla_scaling scaling) {
  if (part.dtype == DType::float8_e4m3) return write_scaled(part, page, row, x, scaling);
  visit_dtype(part.dtype, [&]<class T>(T) {
    store_row(x, part.channels, reinterpret_cast<T*>(part.at(page, row)));
  });
}

template <class T>
void append_row(const MlaAppendProblem& p, int64_t i) {
  const bool rotates = p.rotary.pairs > 0;
  if (rotates) {
    for (int64_t head = 0; head < p.heads; ++head) {
      rotate(p.rotary, p.positions[i], p.q_pe.at<T>(0, i, head), kRopeDim, 1.0f,
             p.q_pe_rotated.at<T>(0, i, head));
    }
  }
  const int64_t slot = p.slots[i];
  if (!p.cache.has_slot(slot)) return;
  const int64_t page = slot / p.cache.page_size, row = slot % p.cache.page_size;
  std::array<float, kLatentValueDim> x;
  load_row(static_cast<const T*>(p.c_kv) + i * p.c_kv_stride, p.cache.latent.channels, x.data());
  write_part(p.cache.latent, page, row, x.data(), p.scaling);
  if (p.cache.rope.channels == 0) return;
  std::fill_n(x.data(), kRopeDim, 0.0f);
  if (p.k_pe != nullptr) {
    const T* const k_pe = static_cast<const T*>(p.k_pe) + i * p.k_pe_stride;
    rotates ? rotate(p.rotary, p.positions[i], k_pe, kRopeDim, 1.0f, x.data())
            : load_row(k_pe, kRopeDim, x.data());
  }
  write_part(p.cache.rope, page, row, x.data(), p.scaling);
}

}  // namespace

float final_lse(const MlaProblem& p, double lse, int64_t head) {
  if (p.sink != nullptr && p.lse_with_sink) {
    const double sink = p.sink[head];
    if (std::isinf(sink)) {
      if (sink > 0) return static_cast<float>(sink);
    } else {
      const double most = std::max(lse, sink);  // finite, or NaN
      lse = most + std::log(std::exp(lse - most) + std::exp(sink - most));
    }
    if (std::isnan(sink)) lse = sink;
  }
  return lse == -std::numeric_limits<double>::infinity() ? p.empty_lse : static_cast<float>(lse);
}

void fill_unowned_rows(const MlaProblem& p) {
  zero_unused_rows(p.o, p.lengths_q, p.batch, p.heads, kLatentValueDim);
  for_each_unused_row(p.lengths_q, p.batch, [&](int64_t b, int64_t row) {
    for (int64_t h = 0; h < p.heads; ++h) {
      if (p.lse.data != nullptr) *p.lse.at(b, h, row) = p.empty_lse;
      if (p.max.data != nullptr) *p.max.at(b, h, row) = -std::numeric_limits<float>::infinity();
    }
  });
}

Status run_mla_append(const MlaAppendProblem& p, void*) {
  parallel_for(p.rows, p.num_threads, [&](int64_t i, int) {
    visit_dtype(p.dtype, [&]<class T>(T) { append_row<T>(p, i); });
  });
  return {};
}

Status run_mla_gather(const MlaGatherProblem& p, void*) {
  parallel_for(p.rows, p.num_threads, [&](int64_t i, int) {
    std::array<float, kLatentValueDim + kRopeDim> x{};
    if (p.cache.has_slot(p.slots[i])) read_row(p.cache, p.slots[i], x.data());
    visit_dtype(p.o.dtype,
                [&]<class T>(T) { store_row(x.data(), p.cache.channels(), p.o.at<T>(0, i, 0)); });
  });
  return {};
}

}  // namespace fa3::cpu
