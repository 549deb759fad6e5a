// SPDX-License-Identifier: Apache-2.0
// Descriptions of global tensors for TMA. The driver's encoder is found at run time, so
// nothing here needs a GPU or a driver to load.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/tile/tensor_span.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

using cuda::Element;
using cuda::TensorSpan;

// Why TMA cannot read this tensor, or null if it can.
const char* tensor_map_obstacle(const TensorSpan& tensor);

// A map whose boxes are one slab of `layout` wide and `box_rows` rows high. `packed_heads` heads
// count as that many rows: row r is head r % packed_heads of tensor row r / packed_heads. False:
// the driver has no encoder, or refused.
bool encode_tensor_map(CUtensorMap& map, const TensorSpan& tensor, Element element,
                       tile::TileLayout layout, int box_rows, int packed_heads = 1);

// A map whose boxes are all slabs of `layout` wide, one behind the other, and `box_rows` rows high:
// dimensions {column of the slab, row, slab, head, batch}. The slabs have all of the tensor's
// columns.
bool encode_slab_map(CUtensorMap& map, const TensorSpan& tensor, Element element,
                     tile::TileLayout layout, int box_rows);

// A clipped map reads tiles that end with any row of the tensor: at row r and inner coordinate i
// come the layout.rows - i rows before row r, then zeros. The rows have two dimensions to that end,
// of one stride and with an origin one tile before the tensor. No byte of a tile with a row or a
// column inside is read from there; for a box without, TMA reads the origin itself, which need not
// be memory. Such boxes, all zeros, are for `outside`: the same map with its origin at the tensor.
bool encode_clipped_map(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& tensor,
                        Element element, tile::TileLayout layout);

// A clipped map with PackGQA, for a tensor of one batch entry: dimensions {column, packed head, row
// of the tile, row, head pack}. The tile has `box_rows` rows, heads packed.
bool encode_clipped_queries(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& tensor,
                            Element element, tile::TileLayout layout, int box_rows,
                            int packed_heads);

}  // namespace fa3::hopper
