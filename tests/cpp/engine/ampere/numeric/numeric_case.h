// SPDX-License-Identifier: Apache-2.0
//
// A forward call of the numeric tests, and tensors with padding. Next: forward_run.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "core/problem.h"
#include "engine/cuda/softmax/outputs.h"

namespace fa3::ampere {

// A (batch, row, head, column) tensor whose rows have `pad` more columns, and that begins `offset`
// elements behind an aligned address.
template <class T>
struct Padded {
  std::vector<T> memory;
  fa3::Operand operand;
  int64_t heads = 0, columns = 0;

  Padded(int64_t batches, int64_t rows, int64_t num_heads, int64_t num_columns, int64_t pad,
         int64_t offset, DType dtype, T junk)
      : heads(num_heads), columns(num_columns) {
    const int64_t head = columns + pad, row = heads * head;
    memory.assign(size_t(batches * rows * row + offset + 16), junk);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    const int64_t to_aligned = int64_t((16 - address % 16) % 16 / sizeof(T));
    operand = {.data = memory.data() + to_aligned + offset,
               .dtype = dtype,
               .batch_stride = rows * row,
               .row_stride = row,
               .head_stride = head};
  }
  T& at(int64_t batch, int64_t row, int64_t head, int64_t column) {
    return operand.at<T>(batch, row, head)[column];
  }
};

struct NumericCase {
  std::string name;
  int batch = 1, heads_q = 1, heads_k = 1, seqlen_q = 1, seqlen_k = 1, d = 64, dv = 64;
  MaskRule mask;
  float softcap = 0;
  bool sink = false;
  bool float_output = false;
  DType dtype = DType::bfloat16;
  int pad = 0, offset = 0;
  float deviation = 1;  // of q
  int loud_key = -1;    // its scores are larger by far
  float loudness = 0;
  float dropout = 0;
  std::vector<int32_t> cu_q, cu_k, used_q, used_k, left;  // packed and other lengths
  int page_size = 0;
  std::vector<int32_t> batch_index;
  int smem_of_sm = 228 << 10;
  int num_splits = 1;
  DType cache = DType::float32;  // float8: of keys and values, with scales by sequence and head
  bool block_mask = false, map_by_sequence = false, map_by_head = false;
  cuda::Gate gate = cuda::Gate::kNone;  // kRows, or any other: of each column
  DType gate_dtype = DType::bfloat16;
  bool max_logit = false;
  double (*function)(double score, int b, int h, int q, int k) = nullptr;  // -inf: hidden
};

inline NumericCase with(NumericCase c, void (*change)(NumericCase&)) {
  change(c);
  return c;
}

inline void PrintTo(const NumericCase& c, std::ostream* out) {
  *out << c.name;
}

}  // namespace fa3::ampere
