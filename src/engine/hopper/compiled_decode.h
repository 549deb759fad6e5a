// SPDX-License-Identifier: Apache-2.0
// The kernels for decoding, each for fp16 and bf16: the tiles of compiled.h and compiled_cache.h that are
// for few queries, without what such a call never needs (ForwardConfig::decodes()): a small call waits
// for instructions. plan_forward.cpp takes them where the call allows.
#pragma once

#include <span>

#include "engine/hopper/compiled_cache.h"

namespace fa3::hopper {

// Of the table's rows of these head dims, that for few queries.
constexpr CompiledForward decoding_row(std::span<const CompiledForward> table, int head_dim) {
  for (const CompiledForward& row : table) {
    const ForwardConfig& config = row.config;
    if (config.head_dim == head_dim && config.block_m == kRowsPerWarpgroup && config.may_cut) {
      return {.config = config.decoding(), .max_rows = row.max_rows, .why = "decoding"};
    }
  }
  throw "no row for few queries";  // not constant: does not compile
}

inline constexpr std::array kDecodeTable{
    CompiledForward{decoding_row(kForwardTable, 64)},
    CompiledForward{decoding_row(kForwardTable, 128)},
    CompiledForward{decoding_row(kForwardTable, 256)},
    CompiledForward{decoding_row(kCacheTable, 64)},
    CompiledForward{decoding_row(kCacheTable, 128)},
    CompiledForward{decoding_row(kCacheTable, 256)},
};

}  // namespace fa3::hopper
