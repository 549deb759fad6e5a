// SPDX-License-Identifier: Apache-2.0
// Every kernel whose warps stream keys (stream_kernel.cuh), each for Q and O in fp16 and bf16: over caches
// of the same type, and over quantized ones. Of each head dim those for fewer query rows come first.
#pragma once

#include <array>

#include "engine/hopper/compiled.h"

namespace fa3::hopper {

// A slot has keys / 8 rows of K and of V, and each warp has so many slots.
constexpr ForwardConfig stream_config(int head_dim, int rows, int keys, int slots) {
  return {.head_dim = head_dim,
          .head_dim_v = head_dim,
          .block_m = rows,
          .block_n = keys,
          .kv_slots = slots,
          .ping_pong = false,
          .may_cut = true,
          .guarded = false,
          .variant = Variant::kStreamTile};
}

// The same over e4m3.
constexpr ForwardConfig stream_cache_config(int head_dim, int rows, int keys, int slots) {
  ForwardConfig config = stream_config(head_dim, rows, keys, slots);
  config.narrow_slots = slots;
  return config;
}

inline constexpr const char* kWhyStream = "few query rows, keys stream through warps";
inline constexpr std::array kStreamTable{
    CompiledForward{.config = stream_config(64, 8, 256, 3), .why = kWhyStream},
    CompiledForward{.config = stream_config(128, 8, 128, 3), .why = kWhyStream},
    CompiledForward{.config = stream_config(128, 16, 128, 2), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(64, 8, 512, 3), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(64, 16, 256, 4), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(128, 8, 256, 3), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(128, 16, 128, 4), .why = kWhyStream},
};

}  // namespace fa3::hopper
