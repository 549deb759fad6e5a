// SPDX-License-Identifier: Apache-2.0
// The headers that a kernel is made of: of the kernel, its tiles, its keys, its policies and its
// loop. Its source includes them, a generated one or one that NVRTC compiles.
#pragma once

#include <array>
#include <string_view>

#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// Some are empty. Decode kernels, and the backward's, have one header for all.
using KernelHeaders = std::array<std::string_view, 10>;

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

// Headers of the policies and of the loop; empty: every kernel's source has it.
constexpr std::string_view header_of_scores(const Kernel& c) {
  if (c.e4m3()) return "engine/hopper/forward/policies/scores_e4m3.cuh"sv;
  if (c.dequantizes()) return "engine/hopper/forward/policies/scores_cached.cuh"sv;
  return c.capped() ? "engine/hopper/forward/policies/scores_capped.cuh"sv : ""sv;
}
constexpr std::string_view header_of_weights(const Kernel& c) {
  if (c.dropout()) return "engine/hopper/forward/policies/weights_dropped.cuh"sv;
  return c.block_mask() ? "engine/hopper/forward/policies/weights_listed.cuh"sv : ""sv;
}
constexpr std::string_view header_of_sum(const Kernel& c) {
  if (c.e4m3()) return "engine/hopper/forward/policies/sum_promoted.cuh"sv;
  return c.continued() ? "engine/hopper/forward/policies/sum_continued.cuh"sv : ""sv;
}
constexpr std::string_view header_of_loop(const Kernel& c) {
  if (c.e4m3()) return "engine/hopper/forward/consumer/promoted_loop.cuh"sv;
  return c.shape.overlaps ? ""sv : "engine/hopper/forward/consumer/serial_loop.cuh"sv;
}

constexpr std::string_view header_of_gate(const Kernel& c) {
  return c.gated() ? "engine/hopper/forward/policies/gated_output.cuh"sv : ""sv;
}
// Rows that splits become in the kernel.
constexpr std::string_view header_of_combined_gate(const Kernel& c) {
  const bool combines = c.gated() && c.is_stream_k();
  return combines ? "engine/hopper/combine/gated_combine.cuh"sv : ""sv;
}
constexpr std::string_view header_of_logits(const Kernel& c) {
  return c.outputs.max_logit ? "engine/hopper/forward/policies/max_logit.cuh"sv : ""sv;
}

constexpr KernelHeaders headers_of(const Kernel& c) {
  if (c.is_decode()) {
    return {"engine/hopper/decode/decode_kernel.cuh"sv, header_of_combined_gate(c)};
  }
  return {"engine/hopper/forward/forward_kernel.cuh"sv,
          header_of(c.scheduler()),
          header_of(c.kv_loader()),
          header_of_scores(c),
          header_of_weights(c),
          header_of_sum(c),
          header_of_loop(c),
          header_of_gate(c),
          header_of_combined_gate(c),
          header_of_logits(c)};
}

constexpr KernelHeaders headers_of(const BackwardConfig&) {
  return {"engine/hopper/backward/backward_kernel.cuh"sv};
}

}  // namespace fa3::hopper
