// SPDX-License-Identifier: Apache-2.0
// The kernels for decoding, each for fp16 and bf16: the tiles of compiled.h and cache_table.h that
// are for few queries, without what such a call never needs (ForwardConfig::decodes()): a small
// call waits for instructions. plan_forward.cpp takes them where the call allows.
#pragma once

#include <span>

#include "engine/hopper/instances/cache_table.h"

namespace fa3::hopper {

// Of the table's rows of these head dims, that for few queries.
constexpr KernelInstance stream_k_instance(std::span<const KernelInstance> table, int head_dim) {
  for (const KernelInstance& row : table) {
    const ForwardConfig& config = row.config;
    if (config.head_dim == head_dim && config.block_m == kRowsPerWarpgroup && config.may_split) {
      return {.config = config.stream_k(), .max_rows = row.max_rows, .why = "decoding"};
    }
  }
  throw "no row for few queries";  // not constant: does not compile
}

inline constexpr std::array kStreamKTable{
    KernelInstance{stream_k_instance(kForwardTable, 64)},
    KernelInstance{stream_k_instance(kForwardTable, 128)},
    KernelInstance{stream_k_instance(kForwardTable, 256)},
    KernelInstance{stream_k_instance(kCacheTable, 64)},
    KernelInstance{stream_k_instance(kCacheTable, 128)},
    KernelInstance{stream_k_instance(kCacheTable, 256)},
};

}  // namespace fa3::hopper
