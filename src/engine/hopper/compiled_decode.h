// SPDX-License-Identifier: Apache-2.0
// The kernels for decoding, each for fp16 and bf16: the tiles of compiled.h that are for few queries,
// without what such a call never needs (ForwardConfig::decodes()): a small call waits for instructions.
// plan_forward.cpp takes them where the call allows.
#pragma once

#include "engine/hopper/compiled.h"

namespace fa3::hopper {

// Of the rows of these head dims, that for few queries.
constexpr CompiledForward decoding_row(int head_dim) {
  for (const CompiledForward& row : kForwardTable) {
    const ForwardConfig& config = row.config;
    if (config.head_dim == head_dim && config.block_m == kRowsPerWarpgroup && config.may_cut) {
      return {.config = config.decoding(), .max_rows = row.max_rows, .why = "decoding"};
    }
  }
  throw "no row for few queries";  // not constant: does not compile
}

inline constexpr std::array kDecodeTable{
    CompiledForward{decoding_row(64)},
    CompiledForward{decoding_row(128)},
    CompiledForward{decoding_row(256)},
};

}  // namespace fa3::hopper
