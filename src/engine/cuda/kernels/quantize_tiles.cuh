// SPDX-License-Identifier: Apache-2.0
// q, k and v quantized together: a warp of a CTA has 16 rows of a block, and its Hadamard matrix is
// partly a product of the tensor cores, so that memory alone limits the kernel. Sums of k and v are
// added up by CTAs between those of q. Next: quantize_together.cu.
#pragma once

#include <type_traits>

#include "engine/cuda/kernels/quantize_sums.cuh"
#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::cuda {

constexpr int kTileWarps = kRows / 16;
constexpr int kTileThreads = kTileWarps * kWarpSize;
constexpr int kMostTogether = 3;

// What one launch quantizes and adds up. A range of tensors each, by their numbers.
struct TogetherParams {
  StreamParams tensors[kMostTogether];
  unsigned tiles[kMostTogether];  // blocks of rows; 0: not in this launch
  unsigned sums[kMostTogether];   // CTAs that add up; likewise
  unsigned all_sums;
  unsigned period;  // each period-th CTA adds up, until all sums are under way
};

template <class T>
constexpr Element kElementOf = std::is_same_v<T, __nv_bfloat16> ? Element::kBf16 : Element::kFp16;

// A lane's part of the Hadamard matrix of 16, as the right operand of two products, 8 columns each.
// Depth and columns stand for the same channels, so the order of channels is free: a lane's pair of
// neighbours, the lane's number in its quad (2 bits) and the second pair of four.
template <class T>
struct HadamardOperand {
  uint32_t plain[2], turned[2];

  __device__ HadamardOperand() {
    const unsigned lane = threadIdx.x % kWarpSize, depth = lane % 4 * 2, column = lane / 4;
    constexpr uint32_t kOne = kElementOf<T> == Element::kBf16 ? 0x3f803f80u : 0x3c003c00u;
    const uint32_t low = __popc(depth & column) & 1, high = __popc((depth | 1) & column) & 1;
    plain[0] = plain[1] = turned[0] = kOne ^ (low << 15 | high << 31);
    turned[1] = plain[0] ^ 0x80008000u;
  }
};

// 8 neighbouring channels of two rows, 8 rows apart, in each chunk of 32 channels.
template <class T, int kDim>
class QuantizeTileThread {
 public:
  static constexpr int kChunks = kDim / 32;

  __device__ QuantizeTileThread(const StreamParams& s, const Block& block)
      : s_(s), block_(block), row_(int(threadIdx.x) / 4), channel_(int(threadIdx.x) % 4 * 8) {
    row_ += row_ / 8 * 8;  // 8 warp rows, then those 8 further
    load();
  }

  __device__ void run(uint32_t* words, unsigned* largest_of_warps) {
    const QuantizeProblem& p = s_.p;
    const float* means = nullptr;
    if (p.centred) means = p.mean.at(block_.sequence, block_.head) + channel_;
    if (p.hadamard) {
      mix();
      subtract<true>(means);
    } else {
      unpack();
      if (means != nullptr) subtract<false>(means);
    }
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (exists(i)) largest = fmaxf(largest, largest_of_row(i));
    }
    const float scale = scale_of(largest_of_tile(largest, largest_of_warps));
    if (threadIdx.x == 0) *p.descale.at(block_.sequence, block_.head, block_.index) = scale;
    store(words, __fdiv_rn(1.0f, scale));
  }

 private:
  __device__ int row(int i) const {
    return row_ + 8 * i;
  }
  __device__ bool exists(int i) const {
    return row(i) < block_.num_rows;
  }

  __device__ void load() {
    const T* const first = s_.p.x.template at<T>(block_.b, block_.first_row, block_.head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* const from = first + row(i) * s_.p.x.row_stride + channel_;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 four =
            exists(i) ? __ldcs(reinterpret_cast<const uint4*>(from + 32 * c)) : uint4{};
        raw_[i][c][0] = four.x, raw_[i][c][1] = four.y;
        raw_[i][c][2] = four.z, raw_[i][c][3] = four.w;
      }
    }
  }

  __device__ void unpack() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 two = to_float2<T>(raw_[i][c][w]);
          x_[i][c][2 * w] = two.x;
          x_[i][c][2 * w + 1] = two.y;
        }
      }
    }
  }

  // Signs and the Hadamard matrix, without its factor. Four bits of a channel's number are the
  // product's, the others are this lane's own.
  __device__ void mix() {
    const HadamardOperand<T> matrix;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint32_t bits = s_.mixing.negated[4 * c + threadIdx.x % 4];
      const uint32_t apart = bits | bits << 15;  // signs of a pair are 16 bits apart, as it is
      uint32_t signs[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) signs[w] = apart << (15 - 2 * w) & 0x80008000u;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int w = 2 * half;
        const uint32_t a[4] = {raw_[0][c][w] ^ signs[w], raw_[1][c][w] ^ signs[w],
                               raw_[0][c][w + 1] ^ signs[w + 1], raw_[1][c][w + 1] ^ signs[w + 1]};
        float low[4] = {}, high[4] = {};
        mma_m16n8k16<kElementOf<T>>(low, a, matrix.plain);
        mma_m16n8k16<kElementOf<T>>(high, a, matrix.turned);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* const to = x_[i][c] + 4 * half;
          to[0] = low[2 * i], to[1] = low[2 * i + 1];
          to[2] = high[2 * i], to[3] = high[2 * i + 1];
        }
      }
    }
    constexpr int kMixed = int(hadamard_block(kDim)) / 32;  // chunks
#pragma unroll
    for (auto& row : x_) {
#pragma unroll
      for (auto& chunk : row) {
#pragma unroll
        for (int n = 0; n < 4; ++n) add_and_subtract(&chunk[n], &chunk[n + 4]);
      }
#pragma unroll
      for (int stride = 1; stride < kMixed; stride *= 2) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if ((c & stride) != 0) continue;
#pragma unroll
          for (int n = 0; n < kChannels; ++n) add_and_subtract(&row[c][n], &row[c + stride][n]);
        }
      }
    }
  }

  static __device__ void add_and_subtract(float* a, float* b) {
    const float sum = __fadd_rn(*a, *b);
    *b = __fsub_rn(*a, *b);
    *a = sum;
  }

  // x = factor x - mean, or x - mean.
  template <bool kScaled>
  __device__ void subtract(const float* means) {
    const float factor = kScaled ? s_.mixing.factor : 1.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < kChannels; n += 4) {
        float4 mean{};
        if (means != nullptr) mean = *reinterpret_cast<const float4*>(means + 32 * c + n);
#pragma unroll
        for (auto& row : x_) {
          float* const x = row[c] + n;
          x[0] = __fmaf_rn(x[0], factor, -mean.x);
          x[1] = __fmaf_rn(x[1], factor, -mean.y);
          x[2] = __fmaf_rn(x[2], factor, -mean.z);
          x[3] = __fmaf_rn(x[3], factor, -mean.w);
        }
      }
    }
  }

  // The largest finite size; numbers that are not finite become NaN.
  __device__ float largest_of_row(int i) {
    float largest = 0.0f;
#pragma unroll
    for (auto& chunk : x_[i]) {
#pragma unroll
      for (float x : chunk) largest = fmaxf(largest, fabsf(x));  // NaN is none
    }
    if (is_finite(largest)) return largest;
    largest = 0.0f;
#pragma unroll
    for (auto& chunk : x_[i]) {
#pragma unroll
      for (float& x : chunk) {
        if (!is_finite(x)) x = __int_as_float(0x7fffffff);
        largest = fmaxf(largest, fabsf(x));
      }
    }
    return largest;
  }

  static __device__ float largest_of_tile(float largest, unsigned* of_warps) {
    const unsigned of_warp = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = of_warp;
    __syncthreads();
    unsigned result = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) result = max(result, of_warps[w]);
    return __uint_as_float(result);
  }

  __device__ void store(uint32_t* words, float inverse) const {
    const QuantizeProblem& p = s_.p;
    const TurnedRows turned(words, kDim);
    uint8_t* const y = p.y.template at<uint8_t>(block_.b, block_.first_row, block_.head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const float* const x = x_[i][c];
        uint2 eight{e4m3_of(x, inverse), e4m3_of(x + 4, inverse)};
        const int channel = channel_ + 32 * c;
        if (p.y_transposed.on) {
          *turned.pair(row(i), channel / 4) = exists(i) ? eight : uint2{};
        } else if (exists(i)) {
          __stcs(reinterpret_cast<uint2*>(y + row(i) * p.y.row_stride + channel), eight);
        }
      }
    }
    if (!p.y_transposed.on) return;
    __syncthreads();
    store_transposed(p, block_, turned);
  }

  const StreamParams& s_;
  const Block& block_;
  int row_, channel_;
  uint32_t raw_[2][kChunks][4];
  float x_[2][kChunks][kChannels];
};

constexpr int ctas_of_tiles(int dim) {
  return dim <= 64 ? 8 : dim <= 128 ? 4 : 2;
}

// Tiles of some tensors, and sums of others between them.
template <class T, int kDim>
__global__ void __launch_bounds__(kTileThreads, ctas_of_tiles(kDim))
    quantize_tiles(const __grid_constant__ TogetherParams t) {
  __shared__ uint32_t words[kRows * kDim / 4];
  __shared__ unsigned largest_of_warps[kTileWarps];
  follow_kernel_before();
  const unsigned turn = blockIdx.x / t.period;
  const bool adds = blockIdx.x % t.period == t.period - 1 && turn < t.all_sums;
  unsigned index = adds ? turn : blockIdx.x - min(turn, t.all_sums);
  const unsigned* const counts = adds ? t.sums : t.tiles;
  int tensor = 0;
  for (; tensor < kMostTogether - 1 && index >= counts[tensor]; ++tensor) index -= counts[tensor];
  const StreamParams& s = t.tensors[tensor];
  const auto heads = unsigned(s.p.heads);
  if (adds) {
    const unsigned parts = counts[tensor] / (unsigned(s.p.batch) * s.blocks);
    const unsigned place = index / parts;
    return add_up<T, 16>(s, place / s.blocks, place % s.blocks, index % parts);
  }
  if (s.last_first) index = counts[tensor] - 1 - index;
  const unsigned place = index / heads;
  const Block block(s.p, place / s.blocks, index % heads, place % s.blocks);
  // Most blocks have no rows where one sequence is far longer than the others.
  if (block.num_rows == 0 && !s.p.y_transposed.on) {
    if (threadIdx.x == 0) *s.p.descale.at(block.sequence, block.head, block.index) = kSmallestScale;
    return;
  }
  QuantizeTileThread<T, kDim> thread(s, block);
  thread.run(words, largest_of_warps);
}

// The means of all tensors' heads.
__global__ void __launch_bounds__(kMostChannels)
    find_means_together(const __grid_constant__ TogetherParams t) {
  follow_kernel_before();
  __shared__ alignas(16) float means[kMostChannels];
  unsigned index = blockIdx.x;
  int tensor = 0;
  for (; tensor < kMostTogether - 1; ++tensor) {
    const QuantizeProblem& p = t.tensors[tensor].p;
    const unsigned heads = p.centred ? unsigned(p.batch * p.heads) : 0;
    if (index < heads) break;
    index -= heads;
  }
  find_mean<128>(t.tensors[tensor], index, means);
}

}  // namespace fa3::cuda
