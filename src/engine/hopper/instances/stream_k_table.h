// SPDX-License-Identifier: Apache-2.0
// The stream-K kernels for decoding, each for fp16 and bf16: the tiles of forward_table.h and
// cache_table.h that are for few queries, without what such a call never needs
// (ForwardConfig::always_splits()): a small call waits for instructions. select_kernel.cpp takes
// them where the call allows.
#pragma once

#include <span>

#include "engine/hopper/instances/cache_table.h"

namespace fa3::hopper {

// The row for few queries of this head dim.
constexpr KernelInstance stream_k_instance(std::span<const KernelInstance> table, int head_dim) {
  for (const KernelInstance& row : table) {
    const ForwardConfig& config = row.config;
    if (config.head_dim == head_dim && config.block_m == kRowsPerWarpgroup && config.may_split) {
      return {.config = config.stream_k(),
              .max_rows = row.max_rows,
              .why = "few query rows: nothing but decoding in the kernel"};
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
