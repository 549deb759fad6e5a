// SPDX-License-Identifier: Apache-2.0
// Every kernel whose warps stream keys (stream_kernel.cuh), each for Q and O in fp16 and bf16: over caches
// of the same type, and over quantized ones. Of each head dim those for fewer query rows come first.
#pragma once

#include <array>

#include "engine/hopper/compiled.h"

namespace fa3::hopper {

// A slot has keys / 8 rows of K or of V, and each warp has so many slots where it goes from piece to piece;
// 0: only one tile's keys stream, for others there is no room.
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

// The same over e4m3, which becomes fp16 in registers: there are no other slots.
constexpr ForwardConfig stream_cache_config(int head_dim, int rows, int keys, int slots) {
  ForwardConfig config = stream_config(head_dim, rows, keys, slots);
  config.narrow_slots = 1;
  return config;
}

inline constexpr const char* kWhyStream = "few query rows, keys stream through warps";
inline constexpr std::array kStreamTable{
    CompiledForward{.config = stream_config(64, 8, 256, 6), .why = kWhyStream},
    CompiledForward{.config = stream_config(128, 8, 128, 5), .why = kWhyStream},
    CompiledForward{.config = stream_config(128, 16, 128, 4), .why = kWhyStream},
    CompiledForward{.config = stream_config(256, 8, 128, 2), .why = kWhyStream},
    CompiledForward{.config = stream_config(256, 16, 128, 0), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(64, 8, 512, 6), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(64, 16, 256, 8), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(128, 8, 256, 5), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(128, 16, 128, 8), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(256, 8, 128, 4), .why = kWhyStream},
    CompiledForward{.config = stream_cache_config(256, 16, 128, 0), .why = kWhyStream},
};

}  // namespace fa3::hopper
