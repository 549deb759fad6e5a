// SPDX-License-Identifier: Apache-2.0
// Names of forward kernels: operands, columns and blocks, tiles, then what differs from most
// kernels
// ("e4m3 d128/128 128x128 rows of V"). Numbers of stages stay out of a name, so that it lasts when
// they are tuned. Host only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

// Text that constant expressions write: std::string cannot outlive them.
template <size_t kSize>
struct FixedText {
  char chars[kSize] = {};
  size_t size = 0;

  constexpr FixedText& add(std::string_view text) {
    for (const char c : text) chars[size++] = c;
    return *this;
  }
  constexpr FixedText& add(int64_t number) {
    if (number < 0) return add("-").add(-number);
    if (number >= 10) add(number / 10);
    chars[size++] = char('0' + number % 10);
    return *this;
  }
  constexpr std::string_view view() const { return {chars, size}; }
};

using KernelName = FixedText<64>;

constexpr KernelName name_of(const ForwardConfig& c) {
  KernelName name;
  name.add(c.e4m3 ? "e4m3 " : c.dequantizes() ? "cache " : "");
  name.add("d").add(c.head_dim).add("/").add(c.head_dim_v).add(" ");
  name.add(c.block_m).add("x").add(c.block_n);
  if (c.dropout) name.add(" dropped");
  if (c.continued) name.add(" continued");
  if (c.block_mask) name.add(" listed");
  if (c.variant == Variant::kDecode) name.add(" decode");
  if (c.is_single_sequence()) name.add(" decode single");
  if (c.variant == Variant::kStreamK) name.add(" stream-K");
  if (c.general()) name.add(c.scheduler() == SchedulerKind::kSplit ? " split" : " varlen");
  if (c.capped()) name.add(" capped");
  if (c.transposes_v) name.add(" rows of V");
  return name;
}

}  // namespace fa3::hopper
