// SPDX-License-Identifier: Apache-2.0
// Tensor maps through cuTensorMapEncodeTiled, looked up once. See tensor_map.h.
#include "engine/hopper/host/tensor_map.h"

#include <array>

#include "engine/cuda/host/device.h"

namespace fa3::hopper {
namespace {

constexpr int kDims = 5;
// The most bytes that a box has in a row. 256 would bring another slab's or head's too early.
constexpr auto kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
constexpr int64_t kStrideAlignment = 16;          // bytes
constexpr int64_t kMaxStride = int64_t{1} << 40;  // bytes, exclusive
constexpr int64_t kMaxExtent = int64_t{1} << 31;  // coordinates are 32-bit signed

// The stride of an extent of one is never used; give the encoder one it accepts.
uint64_t stride_bytes(int64_t extent, int64_t stride, int element_bytes) {
  return extent > 1 ? uint64_t(stride * element_bytes) : uint64_t{kStrideAlignment};
}

// A stride of 0, as expand() makes it, is none of a tensor map's: CUDA asks for strides that are no
// smaller than their extents. Heads that share one key head come as grouped heads instead, and a
// caller may name the entry of a batch that shares its keys by batch_index. The ampere engine reads
// any strides.
bool encodable(int64_t extent, int64_t stride, int element_bytes) {
  const int64_t bytes = stride * element_bytes;
  return extent <= 1 || (bytes > 0 && bytes < kMaxStride && bytes % kStrideAlignment == 0);
}

using Extents = std::array<cuuint64_t, kDims>;
using Strides = std::array<cuuint64_t, kDims - 1>;  // that of columns is one element
using Box = std::array<cuuint32_t, kDims>;

bool encode(CUtensorMap& map, void* data, const Extents& extents, const Strides& strides,
            const Box& box, Element element, tile::TileLayout layout) {
  static const auto encoder = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(
      cuda::find_driver_function("cuTensorMapEncodeTiled"));
  if (encoder == nullptr) return false;
  constexpr cuuint32_t kElementStrides[kDims] = {1, 1, 1, 1, 1};
  const auto type = element == Element::kE4m3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : element == Element::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle =
      layout.row_bytes() == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return encoder(&map, type, kDims, data, extents.data(), strides.data(), box.data(),
                 kElementStrides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, kPromotion,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

void* rows_before(void* data, uint64_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) - bytes);
}

}  // namespace

const char* tensor_map_obstacle(const TensorSpan& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % kStrideAlignment != 0) {
    return "address is not a multiple of 16 bytes";
  }
  if (t.batches > 1 && t.batch_stride == 0) {
    return "strides must be positive multiples of 16 bytes; the batch shares one entry (stride 0): "
           "copy it, or pass that entry of k and v with batch_index of zeros";
  }
  if (!encodable(t.rows, t.row_stride, t.element_bytes) ||
      !encodable(t.heads, t.head_stride, t.element_bytes) ||
      !encodable(t.batches, t.batch_stride, t.element_bytes)) {
    return "strides must be positive multiples of 16 bytes, under 2^40; for a head dim that is "
           "none, "
           "allocate rows that are and pass their first columns";
  }
  if (t.rows >= kMaxExtent || t.heads >= kMaxExtent || t.batches >= kMaxExtent) {
    return "extents must be under 2^31";
  }
  return nullptr;
}

bool encode_tensor_map(CUtensorMap& map, const TensorSpan& t, Element element,
                       tile::TileLayout layout, int box_rows, int packed_heads) {
  const int bytes = t.element_bytes;
  const int64_t packs = t.heads / packed_heads;
  const Extents extents = {cuuint64_t(t.columns), cuuint64_t(packed_heads), cuuint64_t(t.rows),
                           cuuint64_t(packs), cuuint64_t(t.batches)};
  const Strides strides = {stride_bytes(packed_heads, t.head_stride, bytes),
                           stride_bytes(t.rows, t.row_stride, bytes),
                           stride_bytes(packs, t.head_stride * packed_heads, bytes),
                           stride_bytes(t.batches, t.batch_stride, bytes)};
  const Box box = {cuuint32_t(layout.slab_columns()), cuuint32_t(packed_heads),
                   cuuint32_t(box_rows / packed_heads), 1, 1};
  return encode(map, t.data, extents, strides, box, element, layout);
}

bool encode_slab_map(CUtensorMap& map, const TensorSpan& t, Element element,
                     tile::TileLayout layout, int box_rows) {
  const int bytes = t.element_bytes;
  const Extents extents = {cuuint64_t(layout.slab_columns()), cuuint64_t(t.rows),
                           cuuint64_t(layout.slabs()), cuuint64_t(t.heads), cuuint64_t(t.batches)};
  const Strides strides = {stride_bytes(t.rows, t.row_stride, bytes),
                           stride_bytes(layout.slabs(), layout.slab_columns(), bytes),
                           stride_bytes(t.heads, t.head_stride, bytes),
                           stride_bytes(t.batches, t.batch_stride, bytes)};
  const Box box = {cuuint32_t(layout.slab_columns()), cuuint32_t(box_rows),
                   cuuint32_t(layout.slabs()), 1, 1};
  return encode(map, t.data, extents, strides, box, element, layout);
}

bool encode_clipped_map(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& t,
                        Element element, tile::TileLayout layout) {
  const int bytes = t.element_bytes;
  const uint64_t row = stride_bytes(t.rows, t.row_stride, bytes);
  const Extents extents = {cuuint64_t(t.columns), cuuint64_t(layout.rows), cuuint64_t(t.rows + 1),
                           cuuint64_t(t.heads), cuuint64_t(t.batches)};
  const Strides strides = {row, row, stride_bytes(t.heads, t.head_stride, bytes),
                           stride_bytes(t.batches, t.batch_stride, bytes)};
  const Box box = {cuuint32_t(layout.slab_columns()), cuuint32_t(layout.rows), 1, 1, 1};
  return encode(map, rows_before(t.data, layout.rows * row), extents, strides, box, element,
                layout) &&
         encode(outside, t.data, extents, strides, box, element, layout);
}

bool encode_clipped_queries(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& t,
                            Element element, tile::TileLayout layout, int box_rows,
                            int packed_heads) {
  const int bytes = t.element_bytes;
  const int64_t packs = t.heads / packed_heads, queries = box_rows / packed_heads;
  const uint64_t row = stride_bytes(t.rows, t.row_stride, bytes);
  const Extents extents = {cuuint64_t(t.columns), cuuint64_t(packed_heads), cuuint64_t(queries),
                           cuuint64_t(t.rows + 1), cuuint64_t(packs)};
  const Strides strides = {stride_bytes(packed_heads, t.head_stride, bytes), row, row,
                           stride_bytes(packs, t.head_stride * packed_heads, bytes)};
  const Box box = {cuuint32_t(layout.slab_columns()), cuuint32_t(packed_heads), cuuint32_t(queries),
                   1, 1};
  return encode(map, rows_before(t.data, queries * row), extents, strides, box, element, layout) &&
         encode(outside, t.data, extents, strides, box, element, layout);
}

}  // namespace fa3::hopper
