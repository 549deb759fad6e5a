// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the backward's kernels: tile sizes and stages, with the shared
// memory and registers that follow. Plain constexpr. kernels/backward.h has what is built.
//
// A CTA has a block of keys. Its warps are of two sides (backward_kernel.cuh): four of the values,
// which sum dV, and four of the keys, which sum dK; a warp of either has a quarter of the keys. All
// of them share dQ.
#pragma once

#include "core/macros.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {

using namespace cuda;  // what every CUDA engine shares

inline constexpr int kWarpsOfSide = 4;
inline constexpr int kThreadsOfSide = kWarpsOfSide * kWarpSize;
inline constexpr int kSides = 2;
inline constexpr int kBackwardThreads = kSides * kThreadsOfSide;
inline constexpr int kBackwardWarps = kSides * kWarpsOfSide;

// How the warps of both sides, which sum dQ together, share a block of its rows and columns, by
// turns in pieces of 16. dq_sums.cuh has how their sums lie in global memory.
struct DqLayout {
  int block_m;
  int head_dim;

  static constexpr int kPiece = 16;

  // 32 rows of a warp where that leaves it whole pieces of columns.
  FA3_HD constexpr int row_warps() const {
    int warps = block_m < 32 ? 1 : block_m / 32;
    while (head_dim / kPiece % (kBackwardWarps / warps) != 0) warps *= 2;
    return warps;
  }
  FA3_HD constexpr int column_warps() const { return kBackwardWarps / row_warps(); }
  FA3_HD constexpr int row_warp(int warp) const { return warp % row_warps(); }
  FA3_HD constexpr int column_warp(int warp) const { return warp / row_warps(); }

  // A warp's: 16 rows and 8 columns at a time.
  FA3_HD constexpr int row_tiles() const { return block_m / kPiece / row_warps(); }
  FA3_HD constexpr int column_blocks() const { return head_dim / 8 / column_warps(); }
  FA3_HD constexpr int row(int warp, int tile) const {
    return (tile * row_warps() + row_warp(warp)) * kPiece;
  }
  FA3_HD constexpr int column(int warp, int block) const {
    return (block / 2 * column_warps() + column_warp(warp)) * kPiece + block % 2 * 8;
  }

  FA3_HD constexpr int accumulators() const { return row_tiles() * column_blocks() * 4; }
  FA3_HD constexpr int block_floats() const { return block_m * head_dim; }
};

struct BackwardConfig {
  Element element = Element::kBf16;
  int head_dim = 128;    // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;  // columns of V and dO as tiled
  int block_m = 64;      // query rows of a step
  int block_n = 128;     // keys of a CTA
  int stages = 2;        // of Q and dO
  int smem_class = kLargeSmemBytes;  // bytes of shared memory that a CTA of it fits
  bool scored = false;               // softcap and dropout: P has another form for dS
  bool block_mask = false;           // goes through the query blocks that a block mask shows
  bool keeps_slopes = false;         // of a score function, apart from P

  FA3_HD constexpr BackwardConfig with_other_p() const {
    BackwardConfig other = *this;
    other.scored = true;
    if (block_m > 32) other.block_m = block_m / 2;  // it takes registers
    return other;
  }

  // A tile for P's other form becomes that of a score function, whose kernel is compiled at run
  // time. apart: its slopes lie beside P, of half of the keys where those of all do not fit.
  FA3_HD constexpr BackwardConfig with_score_function(bool apart) const {
    BackwardConfig other = *this;
    other.scored = false;
    other.keeps_slopes = apart;
    if (other.tile_bytes() > smem_class) other.block_n = block_n / 2;
    return other;
  }

  // Postprocess knows dQ alone.
  FA3_HD constexpr BackwardConfig of_dq() const {
    return {.element = element, .head_dim = head_dim, .block_m = block_m};
  }

  FA3_HD constexpr int keys_of_warp() const { return block_n / kWarpsOfSide; }
  FA3_HD constexpr int row_tiles() const { return keys_of_warp() / kRowsPerWarp; }

  FA3_HD constexpr TileLayout q_tile() const { return {block_m, head_dim}; }
  FA3_HD constexpr TileLayout d_o_tile() const { return {block_m, head_dim_v}; }
  FA3_HD constexpr TileLayout k_tile() const { return {block_n, head_dim}; }
  FA3_HD constexpr TileLayout v_tile() const { return {block_n, head_dim_v}; }
  // dS transposed: rows are keys. No row is narrower than a tile's can be.
  FA3_HD constexpr TileLayout ds_tile() const { return {block_n, block_m < 32 ? 32 : block_m}; }
  FA3_HD constexpr DqLayout dq() const { return {block_m, head_dim}; }

  FA3_HD constexpr int p_bytes() const { return block_n * block_m * bytes_of(element); }
  FA3_HD constexpr int slope_bytes() const { return keeps_slopes ? p_bytes() : 0; }
  FA3_HD constexpr int stage_bytes() const { return q_tile().bytes() + d_o_tile().bytes(); }
  FA3_HD constexpr int statistics_bytes() const { return 2 * block_m * int{sizeof(float)}; }
  // All of a CTA's shared memory, but for the record of its work.
  FA3_HD constexpr int tile_bytes() const {
    return k_tile().bytes() + v_tile().bytes() + stages * (stage_bytes() + statistics_bytes()) +
           p_bytes() + ds_tile().bytes() + slope_bytes();
  }
};

}  // namespace fa3::ampere
