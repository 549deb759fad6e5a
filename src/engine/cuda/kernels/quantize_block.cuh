// SPDX-License-Identifier: Apache-2.0
// What the quantizer's kernels share: a block of rows that have one scale, the workspace, and rows
// on their way to the side of channels. Next: quantize_stream.cuh.
#pragma once

#include "engine/cuda/kernels/quantize_row.cuh"

namespace fa3::cuda {

constexpr int kRows = kDescaleRows;

struct QuantizerParts {
  float* sums = nullptr;     // (batch, heads, blocks, dim), if centred
  float* means = nullptr;    // (batch, heads, dim), if centred; as they are subtracted
  float* largest = nullptr;  // (batch, heads, blocks), if blocks share scales
};

// Kernels of a stream follow each other by programmatic dependent launch, where GPUs know it: the
// next one may start, and what the one before does is done. Before anything is read or written.
__device__ inline void follow_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A block of a sequence's used rows, in one head.
struct Block {
  int64_t sequence, head, index;
  int64_t b, first_row;  // where x and y have its rows
  int num_rows;

  Block() = default;
  __device__ Block(const QuantizeProblem& p, int64_t s, int64_t h, int64_t i)
      : sequence(s), head(h), index(i) {
    const Rows rows = p.lengths.clamped_rows_of(sequence);
    b = p.lengths.packed() ? 0 : sequence;
    first_row = rows.begin + index * kRows;
    const int64_t left = rows.used - index * kRows;
    num_rows = static_cast<int>(left < 0 ? 0 : left < kRows ? left : kRows);
  }
  __device__ int64_t place(const QuantizeProblem& p, int64_t blocks) const {
    return (sequence * p.heads + head) * blocks + index;
  }
};

// The mean of a channel whose rows add up to `sum`.
__device__ inline float mean_of(const QuantizeProblem& p, int64_t sequence, float sum) {
  const int64_t rows = p.lengths.clamped_rows_of(sequence).used;
  const float mean = __fdiv_rn(sum, static_cast<float>(rows > 0 ? rows : 1));
  return is_finite(mean) ? mean : 0.0f;
}

// The caller's means, which are mixed as the rows are; a warp has all channels of a head.
__device__ inline void store_mean(const QuantizeProblem& p, const Mixing& mixing, int64_t b,
                                  int64_t head, const float* means) {
  const RowLane at(p.head_dim);
  Channels row{};
  if (at.row == 0) row = unpacked(load_packed(means + at.channel()));
  if (p.hadamard) mix(mixing, at, &row);
  if (at.row != 0) return;
  float* const to = p.mean.at(b, head) + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) to[c] = row.x[c];
}

__device__ inline float scale_of(float largest) {
  return fmaxf(__fdiv_rn(largest, 448.0f), kSmallestScale);
}

// The e4m3 numbers of a block, a row for each row of x, on their way to the side of channels.
// Columns are turned by the row's number, so that lanes of several rows meet in few banks.
class TurnedRows {
 public:
  __device__ TurnedRows(uint32_t* words, int64_t dim) : words_(words), columns_(int(dim) / 4) {}

  // 8 channels, from an even column on.
  __device__ uint2* pair(int row, int column) const {
    return reinterpret_cast<uint2*>(words_ + row * columns_ + turned(row, column));
  }
  // 16 channels, from a fourth column on, where the columns are a multiple of 8.
  __device__ uint4* quad(int row, int column) const {
    return reinterpret_cast<uint4*>(words_ + row * columns_ + turned(row, column));
  }
  // Four channels of the 16 rows from `first` on: x[c] are those of channel c.
  __device__ void gather(int first, int column, uint32_t (&x)[4][4]) const {
    const uint32_t* const rows = words_ + first * columns_ + turned(first, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t keys[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        keys[j] = rows[(2 * i + j / 2 * 8 + j % 2) * columns_];  // transposed_place() is 4 i + j
      }
      const uint32_t a = __byte_perm(keys[0], keys[1], 0x5140);
      const uint32_t b = __byte_perm(keys[2], keys[3], 0x5140);
      const uint32_t c = __byte_perm(keys[0], keys[1], 0x7362);
      const uint32_t d = __byte_perm(keys[2], keys[3], 0x7362);
      x[0][i] = __byte_perm(a, b, 0x5410);
      x[1][i] = __byte_perm(a, b, 0x7632);
      x[2][i] = __byte_perm(c, d, 0x5410);
      x[3][i] = __byte_perm(c, d, 0x7632);
    }
  }

 private:
  __device__ int turned(int row, int column) const {
    return (column + row / kTransposedKeys * 8) % columns_;
  }

  uint32_t* words_;
  int columns_;
};
static_assert(transposed_place(0) == 0 && transposed_place(1) == 1 && transposed_place(8) == 2 &&
              transposed_place(9) == 3 && transposed_place(2) == 4);

// The rows of a block, as channels of 16 neighbouring places each; four lanes have a channel. By
// `threads` threads, of which this is number `thread`.
__device__ inline void store_transposed(const QuantizeProblem& p, const Block& block,
                                        const TurnedRows& rows, int thread, int threads) {
  constexpr int kParts = kRows / kTransposedKeys;
  const int64_t places = transposed_places(p.lengths.max) - block.index * kRows;
  auto* const y = p.y.at<uint8_t>(block.b, 0, block.head) + block.index * kRows;
  for (int i = thread; i < int(p.head_dim) / 4 * kParts; i += threads) {
    const int first = i % kParts * kTransposedKeys, column = i / kParts;
    if (first >= places) continue;
    uint32_t x[4][4];
    rows.gather(first, column, x);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint8_t* const to = y + (column * 4 + c) * p.y_transposed.channel_stride + first;
      *reinterpret_cast<uint4*>(to) = {x[c][0], x[c][1], x[c][2], x[c][3]};
    }
  }
}

}  // namespace fa3::cuda
