// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/host/captured_tile.h"

#include "engine/cuda/jit/score_program.h"

namespace fa3::hopper {
namespace {

// Two dimensions for queries and keys, and at most two before, which have the map's dimensions of
// heads and of batch entries, in this order. What the tensor repeats is there once.
TensorSpan span_of(const fa3_captured_tensor& t) {
  const int others = t.rank - 2;
  const auto extent = [&](int dim) {
    return dim < others && t.stride[dim] != 0 ? t.shape[dim] : 1;
  };
  return {.data = const_cast<void*>(t.data),
          .batches = extent(1),
          .rows = t.shape[others],
          .heads = extent(0),
          .columns = t.shape[others + 1],
          .batch_stride = others > 1 ? t.stride[1] : 0,
          .row_stride = t.stride[others],
          .head_stride = others > 0 ? t.stride[0] : 0};
}

// Row-major.
TensorSpan gradient_of(const fa3_captured_tensor& t) {
  fa3_captured_tensor gradient = t;
  gradient.data = t.gradient;
  int64_t stride = 1;
  for (int dim = t.rank - 1; dim >= 0; --dim) {
    gradient.stride[dim] = stride;
    stride *= t.shape[dim];
  }
  return span_of(gradient);
}

// 16 bits are 16 bits.
bool encode(CUtensorMap& map, const TensorSpan& span, tile::TileLayout layout) {
  return encode_tensor_map(map, span, Element::kBf16, layout, layout.rows);
}

// Two, or three, of a number that they divide. More gain little beyond that (docs/lab/flex.md), and
// have more keys and values in the L2 at a time.
int few_of(int64_t number) {
  return number % 2 == 0 ? 2 : number % 3 == 0 ? 3 : 1;
}

}  // namespace

CapturedParts parts_of_captured(const fa3_score_function& score) {
  if (!cuda::has_element(score, FA3_ELEMENT_OF_SCORE)) return {0, 0};
  const fa3_captured_tensor& tensor = score.tensors[score.element.tensor];
  if (tensor.rank < 2) return {0, 0};
  const TensorSpan span = span_of(tensor);
  const int head = score.element.head_index;
  const int64_t of_heads = head == 0 ? span.heads : head == 1 ? span.batches : 1;
  return {of_heads, span.heads * span.batches / of_heads};
}

int find_captured_tile(const fa3_score_function& score, int64_t seqlen_q, int64_t seqlen_k) {
  if (!cuda::has_element(score, FA3_ELEMENT_OF_SCORE)) return kNoTile;
  const int number = score.element.tensor;
  const fa3_captured_tensor& t = score.tensors[number];
  if (t.rank < 2 || t.stride[t.rank - 1] != 1) return kNoTile;
  if (t.shape[t.rank - 2] < seqlen_q || t.shape[t.rank - 1] < seqlen_k) return kNoTile;
  return tensor_map_obstacle(span_of(t)) == nullptr ? number : kNoTile;
}

bool is_read_once(const fa3_captured_tensor& tensor) {
  const TensorSpan span = span_of(tensor);
  return span.heads > 1 || span.batches > 1;
}

const char* stored_gradient_obstacle(const fa3_score_function& score, int64_t seqlen_q,
                                     int64_t seqlen_k) {
  const fa3_captured_tensor* const tensor = cuda::tensor_with_stored_gradient(score);
  if (tensor == nullptr) return nullptr;
  if (score.slope != nullptr) return "the function has a slope";
  if (find_captured_tile(score, seqlen_q, seqlen_k) == kNoTile) {
    return "TMA cannot bring the tensor as elements of scores";
  }
  return tensor_map_obstacle(gradient_of(*tensor));
}

bool encode_captured_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout) {
  return encode(map, span_of(tensor), layout);
}

bool encode_gradient_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout) {
  return encode(map, gradient_of(tensor), layout);
}

TilesTogether choose_together(const fa3_score_function& score, int64_t heads, int64_t batches) {
  const CapturedParts parts = parts_of_captured(score);
  TilesTogether together;
  if (parts.of_others == 1) together.batches = few_of(batches);
  if (parts.of_heads == 1 && together.batches == 1) together.packs = few_of(heads);
  return together;
}

}  // namespace fa3::hopper
