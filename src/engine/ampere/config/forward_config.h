// SPDX-License-Identifier: Apache-2.0
// The template parameter of the forward kernels, and the budgets that follow from it. Plain
// constexpr, tested on the host. Next: kernels/forward.h.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {

using namespace cuda;  // what every CUDA engine shares

// The classes of GPUs by the shared memory that a CTA may ask for.
inline constexpr int kSmallSmemBytes = 99 << 10;     // sm_86, sm_89 and sm_120
inline constexpr int kLargeSmemBytes = 163 << 10;    // sm_80
inline constexpr int kLargestSmemBytes = 227 << 10;  // sm_90 and sm_100

inline constexpr int kOwnSmemBytes = 1024;  // taken by every CTA beside what it asks for

struct ForwardConfig {
  Element element = Element::kBf16;
  int head_dim = 0;    // columns of Q and K, and
  int head_dim_v = 0;  // of V and O: multiples of 32
  int block_m = 0;     // query rows of a CTA: 16 of one warp, or more of four
  int block_n = 0;     // keys of a step, a multiple of 16
  int stages = 2;  // of K and V. 2: one is read while the other is filled. 1: K is filled while V
                   // is read, and the other way round
  int ctas_per_sm = 1;  // for which registers are left
  int q_columns = 0;    // of Q whose fragments stay in registers; a step reads the others again
  bool dropout = false;
  bool quantized = false;   // keys and values are e4m3 or e5m2 in global memory
  bool block_mask = false;  // visits what a block mask shows; a tile has queries of one row of it
  Outputs outputs = {};     // no built kernel has any: compiled at run time

  FA3_HD constexpr ForwardConfig with(Element e) const {
    ForwardConfig c = *this;
    c.element = e;
    return c;
  }

  // This tile with registers left for a score function: its kernel is compiled at run time.
  FA3_HD constexpr ForwardConfig with_score_function() const {
    ForwardConfig c = *this;
    if (warps() == 1) return c;
    const int most = head_dim == 128 ? 48 : 64;
    if (block_n > most) c.block_n = most;
    if (ctas_per_sm > 2) c.ctas_per_sm = 2;
    return c;
  }

  FA3_HD constexpr bool gated() const { return outputs.gate != Gate::kNone; }

  FA3_HD constexpr int warps() const { return block_m == kRowsPerWarp ? 1 : 4; }
  FA3_HD constexpr int threads() const { return warps() * kWarpSize; }
  FA3_HD constexpr int warp_rows() const { return block_m / warps(); }
  FA3_HD constexpr int row_tiles() const { return warp_rows() / kRowsPerWarp; }  // of a warp

  // Binary orders that scores may rise before a guard fires (cuda/softmax/score.cuh). fp16 has no
  // exponents for them, three CTAs on an SM no registers.
  FA3_HD constexpr int headroom_log2() const {
    return element == Element::kBf16 && !quantized && threads() * ctas_per_sm <= 256 ? 24 : 0;
  }

  FA3_HD constexpr TileLayout q_tile() const { return {block_m, head_dim}; }
  FA3_HD constexpr TileLayout k_tile() const { return {block_n, head_dim}; }
  FA3_HD constexpr TileLayout v_tile() const { return {block_n, head_dim_v}; }
  FA3_HD constexpr int stage_bytes() const { return k_tile().bytes() + v_tile().bytes(); }

  static constexpr int kWorkBytes = 512;  // what a CTA knows of its tile (forward/tile_work.cuh)
  FA3_HD constexpr int smem_bytes() const {
    return q_tile().bytes() + stages * stage_bytes() + kWorkBytes;
  }
  // What an SM needs for all CTAs that registers are left for.
  FA3_HD constexpr int smem_bytes_of_sm() const {
    return ctas_per_sm * (smem_bytes() + kOwnSmemBytes);
  }
};

}  // namespace fa3::ampere
