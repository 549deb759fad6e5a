// SPDX-License-Identifier: Apache-2.0
// Every decode kernel (decode_kernel.cuh), each for Q and O in fp16 and bf16: over caches of the
// same type, and over quantized ones. By head dims, those for fewer query rows first.
#pragma once

#include <array>

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

// A stage has keys / 8 rows of K or of V. `stages`: of each warp, in the kernel for several
// sequences; 0: that one is not built, for want of shared memory.
constexpr ForwardConfig decode_config(int head_dim, int rows, int keys, int stages) {
  return {.head_dim = head_dim,
          .head_dim_v = head_dim,
          .block_m = rows,
          .block_n = keys,
          .kv_stages = stages,
          .ping_pong = false,
          .may_split = true,
          .guarded = false,
          .variant = Variant::kDecodeSingle};
}

// The same over a quantized cache, which becomes fp16 in registers: there are no other stages.
constexpr ForwardConfig decode_cache_config(int head_dim, int rows, int keys, int stages) {
  ForwardConfig config = decode_config(head_dim, rows, keys, stages);
  config.quantized_stages = 1;
  return config;
}

inline constexpr const char* kWhyDecode = "few query rows: each warp reads keys of its own";
inline constexpr std::array kDecodeTable{
    KernelInstance{.config = decode_config(64, 8, 256, 6), .why = kWhyDecode},
    KernelInstance{.config = decode_config(128, 8, 128, 5), .why = kWhyDecode},
    KernelInstance{.config = decode_config(128, 16, 128, 4), .why = kWhyDecode},
    KernelInstance{.config = decode_config(256, 8, 128, 2), .why = kWhyDecode},
    KernelInstance{.config = decode_config(256, 16, 128, 0), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(64, 8, 512, 6), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(64, 16, 256, 8), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(128, 8, 256, 5), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(128, 16, 128, 8), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(256, 8, 128, 4), .why = kWhyDecode},
    KernelInstance{.config = decode_cache_config(256, 16, 128, 0), .why = kWhyDecode},
};

}  // namespace fa3::hopper
