// SPDX-License-Identifier: Apache-2.0
// The tiles of a forward kernel in shared memory, and the types of its operands. Plain constexpr.
// Next: kernel.h.
#pragma once

#include "engine/cuda/ptx/element.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

struct OperandTypes {
  Element query, product, stored;

  // Q is brought to the products' type.
  FA3_HD constexpr bool rescales_queries() const {
    return stored == Element::kE4m3 && query != product;
  }
};

struct TileShapes {
  tile::TileLayout q, k, v;
  tile::TileLayout loaded_k, loaded_v;  // as they arrive: narrower in a quantized cache
  tile::TileLayout staged_o;            // of a warp, where O leaves through shared memory

  // e4m3 products sum along columns, so that V comes transposed, or is where it has arrived.
  FA3_HD constexpr TileShapes(int block_m, int block_n, int head_dim, int head_dim_v,
                              int product_bytes, int stored_bytes, bool transposed_v,
                              bool arrives_in_rows)
      : q{block_m, head_dim, product_bytes},
        k{block_n, head_dim, product_bytes},
        v(transposed_v ? tile::TileLayout{head_dim_v, block_n, product_bytes}
                       : tile::TileLayout{block_n, head_dim_v, product_bytes}),
        loaded_k{block_n, head_dim, stored_bytes},
        loaded_v(transposed_v && !arrives_in_rows
                     ? v
                     : tile::TileLayout{block_n, head_dim_v, stored_bytes}),
        staged_o{cuda::kRowsPerWarp, head_dim_v} {}

  FA3_HD constexpr int q_bytes() const { return q.bytes(); }
  FA3_HD constexpr int stage_bytes() const { return larger(k, v); }
  FA3_HD constexpr int loaded_stage_bytes() const { return larger(loaded_k, loaded_v); }

 private:
  static FA3_HD constexpr int larger(tile::TileLayout a, tile::TileLayout b) {
    return a.bytes() > b.bytes() ? a.bytes() : b.bytes();
  }
};

}  // namespace fa3::hopper
