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

}  // namespace

int64_t num_captured_parts(const fa3_score_function& score) {
  const int number = cuda::tensor_of_scores(score);
  if (number < 0 || number >= score.num_tensors || score.tensors[number].rank < 2) return 0;
  const TensorSpan span = span_of(score.tensors[number]);
  return span.heads * span.batches;
}

int find_captured_tile(const fa3_score_function& score, int64_t seqlen_q, int64_t seqlen_k) {
  const int number = cuda::tensor_of_scores(score);
  if (number < 0 || number >= score.num_tensors) return kNoTile;
  const fa3_captured_tensor& t = score.tensors[number];
  if (t.rank < 2 || t.stride[t.rank - 1] != 1) return kNoTile;
  if (t.shape[t.rank - 2] < seqlen_q || t.shape[t.rank - 1] < seqlen_k) return kNoTile;
  return tensor_map_obstacle(span_of(t)) == nullptr ? number : kNoTile;
}

bool is_read_once(const fa3_captured_tensor& tensor) {
  const TensorSpan span = span_of(tensor);
  return span.heads > 1 || span.batches > 1;
}

int find_stored_gradient(const fa3_score_function& score) {
  for (int i = 0; i < score.num_tensors; ++i) {
    const fa3_captured_tensor& t = score.tensors[i];
    if (t.gradient != nullptr && t.stores_gradient != 0) return i;
  }
  return kNoTile;
}

const char* stored_gradient_obstacle(const fa3_score_function& score, int64_t seqlen_q,
                                     int64_t seqlen_k) {
  const int number = find_stored_gradient(score);
  if (number == kNoTile) return nullptr;
  if (score.slope != nullptr) return "the function has a slope";
  if (find_captured_tile(score, seqlen_q, seqlen_k) != number) {
    return "it is not that of the one tensor which load_of_score() brings by TMA";
  }
  return tensor_map_obstacle(gradient_of(score.tensors[number]));
}

bool encode_captured_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout) {
  return encode(map, span_of(tensor), layout);
}

bool encode_gradient_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout) {
  return encode(map, gradient_of(tensor), layout);
}

}  // namespace fa3::hopper
