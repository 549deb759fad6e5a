// SPDX-License-Identifier: Apache-2.0
// What the kernels of both passes share: warpgroups, the limits of an SM, and the variants that
// kernels are compiled in. Next: roles.cuh.
#pragma once

#include "engine/cuda/ptx/fragment.h"

namespace fa3::hopper {

using namespace cuda;  // what every CUDA engine shares

inline constexpr int kWarpgroupSize = 128;  // four warps issue one wgmma
inline constexpr int kWarpsPerWarpgroup = kWarpgroupSize / kWarpSize;
inline constexpr int kRowsPerWarpgroup = kWarpsPerWarpgroup * kRowsPerWarp;  // that a wgmma covers

inline constexpr int kCopyColumns = 8;  // 16 bits each: TMA moves at least 16 bytes

inline constexpr int kSmemAlignment = 1024;   // period of the widest swizzle, in bytes
inline constexpr int kMaxSmemBytes = 232448;  // 227 KB, the opt-in limit of sm_90
inline constexpr int kOwnSmemBytes = 1024;    // taken by every CTA beside what it asks for

// What each CTA may ask for, if `blocks` of them share an SM.
constexpr int smem_bytes_of_each(int blocks) {
  return (kMaxSmemBytes + kOwnSmemBytes) / blocks - kOwnSmemBytes;
}

// Which calls a kernel serves, by their masks and lengths.
enum class Variant : unsigned char {
  kDense,    // one length for all sequences, full or causal
  kGeneral,  // windows, sinks and lengths of their own too
  kCapped,   // softcap too
};

}  // namespace fa3::hopper
