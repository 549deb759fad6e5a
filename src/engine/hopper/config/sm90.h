// SPDX-License-Identifier: Apache-2.0
// What the kernels of both passes stand on: warpgroups, the limits of an SM, and the variants
// that each kernel is compiled in. Next: roles.cuh.
#pragma once

#include "engine/cuda/fragment.h"

namespace fa3::hopper {

using namespace cuda;  // what every CUDA engine shares

inline constexpr int kWarpgroupSize = 128;  // four warps issue one wgmma
inline constexpr int kWarpsPerWarpgroup = kWarpgroupSize / kWarpSize;
inline constexpr int kRowsPerWarpgroup = kWarpsPerWarpgroup * kRowsPerWarp;  // that a wgmma covers

inline constexpr int kCopyColumns = 8;  // of 16 bits: TMA moves 16 bytes at least

inline constexpr int kSmemAlignment = 1024;   // period of the widest swizzle, in bytes
inline constexpr int kMaxSmemBytes = 232448;  // 227 KB, the opt-in limit of sm_90
inline constexpr int kOwnSmemBytes = 1024;    // of each CTA, beside what it asks for

// That each of so many CTAs on an SM may ask for.
constexpr int smem_bytes_of_each(int blocks) {
  return (kMaxSmemBytes + kOwnSmemBytes) / blocks - kOwnSmemBytes;
}

// What a kernel is compiled for: each row of a table comes in all of these.
enum class Variant : unsigned char {
  kDense,    // one length for all sequences, full or causal
  kGeneral,  // windows, sinks and lengths of their own too
  kCapped,   // softcap too
  kStreamK,  // of rows of its own (stream_k_table.h): few queries, and nothing but what these need
  kDecode,   // the same for fewer still (../stream/)
  kDecodeSingle,  // the same for one sequence: a part of a tile for each cluster of CTAs
};
inline constexpr int kNumVariants = 3;  // of rows that come in all

}  // namespace fa3::hopper
