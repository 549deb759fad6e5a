// SPDX-License-Identifier: Apache-2.0
// The stream-K kernels for decoding, each for fp16 and bf16: the tiles of forward_table.h and
// cache_table.h that are for few queries, or whose keys can be split, without what such a call
// never needs (ForwardConfig::always_splits()): a small call waits for instructions.
// select.cpp takes them where the call allows.
#pragma once

#include <span>

#include "engine/hopper/tables/cache_table.h"

namespace fa3::hopper {

// The row of this head dim that splits tiles of `rows` rows.
constexpr KernelInstance stream_k_instance(std::span<const KernelInstance> table, int head_dim,
                                           int rows = kRowsPerWarpgroup) {
  for (const KernelInstance& row : table) {
    const ForwardConfig& config = row.config;
    if (config.head_dim == head_dim && config.block_m == rows && config.may_split) {
      return {.config = config.stream_k(),
              .max_rows = row.max_rows,
              .why = rows == kRowsPerWarpgroup
                         ? "few query rows: nothing but decoding in the kernel"
                         : "a tile for each sequence: nothing but decoding in the kernel"};
    }
  }
  throw "no such row";  // not constant: does not compile
}

inline constexpr std::array kStreamKTable{
    KernelInstance{stream_k_instance(kForwardTable, 64)},
    KernelInstance{stream_k_instance(kForwardTable, 128)},
    KernelInstance{stream_k_instance(kForwardTable, 256)},
    KernelInstance{stream_k_instance(kCacheTable, 64)},
    KernelInstance{stream_k_instance(kCacheTable, 128)},
    KernelInstance{stream_k_instance(kCacheTable, 256)},
    KernelInstance{stream_k_instance(kForwardTable, 128, 128)},
    KernelInstance{stream_k_instance(kForwardTable, 256, 128)},
    KernelInstance{stream_k_instance(kForwardTable, 64, 128)},
};

}  // namespace fa3::hopper
