// SPDX-License-Identifier: Apache-2.0
// The headers that a forward kernel is made of, beside those that all have: of its tiles, its
// keys and its scores. Its source includes them, a generated one or one that NVRTC compiles.
#pragma once

#include <array>
#include <string_view>

#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// Empty: no more. Decode kernels have one header for all.
using KernelHeaders = std::array<std::string_view, 5>;

using std::literals::operator""sv;

constexpr std::string_view header_of(SchedulerKind scheduler) {
  switch (scheduler) {
    case SchedulerKind::kDense:
      return "engine/hopper/forward/producer/schedule/dense_tiles.cuh"sv;
    case SchedulerKind::kVarlen:
      return "engine/hopper/forward/producer/schedule/varlen_tiles.cuh"sv;
    case SchedulerKind::kSplit:
      return "engine/hopper/forward/producer/schedule/split_tiles.cuh"sv;
    case SchedulerKind::kStreamK:
      return "engine/hopper/forward/producer/schedule/stream_k_tiles.cuh"sv;
    case SchedulerKind::kListed:
      return "engine/hopper/forward/producer/schedule/listed_tiles.cuh"sv;
  }
  return {};
}

constexpr std::string_view header_of(KvLoaderKind loader) {
  switch (loader) {
    case KvLoaderKind::kDense:
      return "engine/hopper/forward/producer/load_tma.cuh"sv;
    case KvLoaderKind::kPages:
      return "engine/hopper/forward/producer/load_tma_pages.cuh"sv;
    case KvLoaderKind::kPagesOrCpAsync:
    case KvLoaderKind::kCpAsync:
      return "engine/hopper/forward/producer/load_cp_async.cuh"sv;
    case KvLoaderKind::kQuantized:
      return "engine/hopper/forward/producer/load_quantized.cuh"sv;
    case KvLoaderKind::kE4m3:
      return "engine/hopper/forward/producer/load_tma_e4m3.cuh"sv;
    case KvLoaderKind::kListed:
      return "engine/hopper/forward/producer/load_tma_listed.cuh"sv;
  }
  return {};
}

constexpr KernelHeaders headers_of(const Kernel& c) {
  if (c.is_decode()) return {"engine/hopper/decode/decode_kernel.cuh"sv};
  const std::string_view scheduler = header_of(c.scheduler()), loader = header_of(c.kv_loader());
  if (c.e4m3()) {
    return {scheduler, loader, "engine/hopper/forward/consumer/max_tracking.cuh"sv,
            "engine/hopper/forward/consumer/promoted_sum.cuh"sv,
            "engine/hopper/forward/consumer/score/e4m3_score.cuh"sv};
  }
  if (c.dequantizes()) {
    return {scheduler, loader, "engine/hopper/forward/consumer/score/quantized_score.cuh"sv};
  }
  return {scheduler, loader};
}

}  // namespace fa3::hopper
