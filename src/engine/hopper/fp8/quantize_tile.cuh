// SPDX-License-Identifier: Apache-2.0
// A block of rows on its way from 16 bits to e4m3, by a group of four warps: a warp has 16 rows,
// and its Hadamard matrix is partly a product of the tensor cores. Next: quantize_together.cuh.
#pragma once

#include <type_traits>

#include "engine/cuda/kernels/quantize_stream.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/tile/tile_layout.h"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

using namespace cuda;

constexpr int kGroupWarps = kRows / 16;
constexpr int kGroupThreads = kGroupWarps * kWarpSize;

// Four warps of a CTA that work on one block, and meet at a barrier of their own. Found anew for
// each block, so that no address of one is kept in a register while the next one needs it.
struct QuantizeGroup {
  unsigned number;
  unsigned thread;  // of the group

  __device__ QuantizeGroup() {
    const unsigned in_block = thread_in_block();
    number = in_block / kGroupThreads;
    thread = in_block % kGroupThreads;
  }
  __device__ void meet() const { ptx::bar_sync(1 + int(number), kGroupThreads); }
};

// As Descales::at(), for a tensor whose heads share no scale.
__device__ inline float* descale(const QuantizeProblem& p, const Block& block) {
  return p.descale.data +
         (block.sequence * p.descale.batch_stride + block.head * p.descale.head_stride +
          block.index * p.descale.block_stride);
}

// What a group has in shared memory to itself.
template <int kDim>
struct GroupSmem {
  alignas(16) uint32_t words[kRows * kDim / 4];  // the e4m3 numbers of a block
  alignas(16) float means[kDim];
  unsigned largest_of_warps[kGroupWarps];
  unsigned next[2];
};

template <class T>
constexpr Element kElementOf = std::is_same_v<T, __nv_bfloat16> ? Element::kBf16 : Element::kFp16;

// A lane's part of the Hadamard matrix of 16, as the right operand of two products, 8 columns each.
// Depth and columns stand for the same channels, so the order of channels is free: a lane's pair of
// neighbours, the lane's number in its quad (2 bits) and the second pair of four. The second
// product has the second pair of four negated.
template <class T>
__device__ uint32_t hadamard_operand(unsigned thread) {
  const unsigned depth = thread % 4 * 2, column = thread % kWarpSize / 4;
  constexpr uint32_t kOne = kElementOf<T> == Element::kBf16 ? 0x3f803f80u : 0x3c003c00u;
  const uint32_t low = __popc(depth & column) & 1, high = __popc((depth | 1) & column) & 1;
  return kOne ^ (low << 15 | high << 31);
}

// 8 neighbouring channels of two rows, 8 rows apart, in each chunk of 32 channels.
template <class T, int kDim>
class QuantizeTileThread {
 public:
  static constexpr int kChunks = kDim / 32;
  static constexpr unsigned kEights = kDim / 8;  // of a row

  __device__ QuantizeTileThread(const StreamParams& s, const Block& block,
                                const QuantizeGroup& group)
      : s_(s),
        block_(block),
        group_(group),
        row_(group.thread / kWarpSize * 16 + row_in_warp(group.thread % kWarpSize / 4)),
        channel_(group.thread % 4 * 8) {}

  // Takes the rows that TMA has brought.
  __device__ void read(const unsigned char* rows) {
    if (s_.p.hadamard) {
      mix(rows);
    } else {
      unpack(rows);
    }
  }

  // Behind read(). The means are in shared memory where the tensor has some.
  __device__ void write(GroupSmem<kDim>& smem) {
    const QuantizeProblem& p = s_.p;
    const float* const means = p.centred ? smem.means + channel_ : nullptr;
    if (p.hadamard) {
      subtract<true>(means);
    } else if (means != nullptr) {
      subtract<false>(means);
    }
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (exists(i)) largest = fmaxf(largest, largest_of_row(i));
    }
    const float scale = scale_of(largest_of_tile(largest, smem.largest_of_warps));
    if (group_.thread == 0) *descale(p, block_) = scale;
    const float inverse = __fdiv_rn(1.0f, scale);
    if (p.y_transposed.on) {
      store_turned(smem.words, inverse);
    } else {
      store(smem.words, inverse);
    }
  }

 private:
  // The rows of eight lanes that read together lie in different banks.
  static __device__ unsigned row_in_warp(unsigned i) {
    return kDim % 64 == 0 ? i % 2 * 4 + i / 2 : i;
  }
  __device__ unsigned row(int i) const {
    return row_ + 8 * unsigned(i);
  }
  __device__ bool exists(int i) const {
    return int(row(i)) < block_.num_rows;
  }

  __device__ void load(const unsigned char* rows, int c, uint32_t (&raw)[2][4]) const {
    // As TileLayout::chunk_offset(): eight rows further the swizzle is the same.
    constexpr TileLayout kLayout{kRows, kDim};
    constexpr int kOfSlab = kLayout.slab_columns() / 32;  // chunks of 32 channels
    const unsigned swizzle = kOfSlab == 2 ? row_ & 7 : row_ >> 1 & 3;
    const unsigned first = row_ * kLayout.row_bytes() + (channel_ / 8 ^ swizzle) * kChunkBytes;
    const unsigned char* const at =
        rows + (first ^ c % kOfSlab * 64) + c / kOfSlab * kLayout.slab_bytes();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 four = *reinterpret_cast<const uint4*>(at + 8 * i * kLayout.row_bytes());
      raw[i][0] = four.x, raw[i][1] = four.y, raw[i][2] = four.z, raw[i][3] = four.w;
    }
  }

  __device__ void unpack(const unsigned char* rows) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t raw[2][4];
      load(rows, c, raw);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 two = to_float2<T>(raw[i][w]);
          x_[i][c][2 * w] = two.x;
          x_[i][c][2 * w + 1] = two.y;
        }
      }
    }
  }

  // Signs and the Hadamard matrix, without its factor. Four bits of a channel's number are the
  // product's, the others are this lane's own.
  __device__ void mix(const unsigned char* rows) {
    const uint32_t matrix = hadamard_operand<T>(group_.thread);
    const auto* const negated = reinterpret_cast<const uint32_t*>(s_.mixing.negated);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t raw[2][4];
      load(rows, c, raw);
      const uint32_t bits = negated[c] >> channel_ & 0xff;  // 8 channels a lane
      const uint32_t apart = bits | bits << 15;  // signs of a pair are 16 bits apart, as it is
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int w = 2 * half;
        const uint32_t a[4] = {raw[0][w], raw[1][w], raw[0][w + 1], raw[1][w + 1]};
        // The matrix has the channels' signs: a product is the same.
        const uint32_t first = matrix ^ (apart << (15 - 2 * w) & 0x80008000u);
        const uint32_t second = matrix ^ (apart << (13 - 2 * w) & 0x80008000u);
        const uint32_t plain[2] = {first, second}, turned[2] = {first, second ^ 0x80008000u};
        float low[4] = {}, high[4] = {};
        mma_m16n8k16<kElementOf<T>>(low, a, plain);
        mma_m16n8k16<kElementOf<T>>(high, a, turned);
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

  __device__ float largest_of_tile(float largest, unsigned* of_warps) const {
    const unsigned of_warp = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    if (group_.thread % kWarpSize == 0) of_warps[group_.thread / kWarpSize] = of_warp;
    group_.meet();
    unsigned result = 0;
#pragma unroll
    for (int w = 0; w < kGroupWarps; ++w) result = max(result, of_warps[w]);
    return __uint_as_float(result);
  }

  // Four channels at x, and the next four.
  static __device__ uint2 eight_of(const float* x, float inverse) {
    float by[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) by[i] = __fmul_rn(x[i], inverse);
    return {pack_e4m3(by[0], by[1], by[2], by[3]), pack_e4m3(by[4], by[5], by[6], by[7])};
  }

  __device__ void store_turned(uint32_t* words, float inverse) const {
    const TurnedRows turned(words, kDim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        *turned.pair(int(row(i)), (int(channel_) + 32 * c) / 4) =
            exists(i) ? eight_of(x_[i][c], inverse) : uint2{};
      }
    }
    group_.meet();
    store_transposed(s_.p, block_, turned, int(group_.thread), kGroupThreads);
  }

  // By way of shared memory, so that a warp's stores are whole lines.
  __device__ void store(uint32_t* words, float inverse) const {
    constexpr int kAtOnce = kGroupThreads / kEights;  // rows
    auto* const eights = reinterpret_cast<uint2*>(words);
#pragma unroll
    for (unsigned c = 0; c < kChunks; ++c) {
      uint2* const to = eights + row_ * kEights + (4 * c ^ turn_of(row_)) + channel_ / 8;
      *to = eight_of(x_[0][c], inverse);
      to[8 * kEights] = eight_of(x_[1][c], inverse);  // which is turned as far
    }
    group_.meet();
    const QuantizeProblem& p = s_.p;
    const unsigned first = group_.thread / kEights, eight = group_.thread % kEights;
    if (first >= kAtOnce) return;
    auto* y = reinterpret_cast<uint2*>(
                  p.y.template at<uint8_t>(block_.b, block_.first_row + first, block_.head)) +
              eight;
    const int64_t further = kAtOnce * p.y.row_stride / int(sizeof(uint2));
    const int left = block_.num_rows - int(first);
#pragma unroll
    for (unsigned i = 0; i < kRows; i += kAtOnce) {
      const unsigned turn = turn_of(kAtOnce % 8 == 0 ? first : first + i);
      if (int(i) < left) __stcs(y, eights[(first + i) * kEights + (eight ^ turn)]);
      y += further;
    }
  }

  // How a row's numbers are swapped, so that four lanes of each of four rows meet in no bank.
  static __device__ unsigned turn_of(unsigned row) {
    if constexpr (kDim % 64 != 0) return 0;
    const unsigned second = row & 4;
    return kDim % 128 == 0 ? second | (row & 1) << 3 : second;
  }

  const StreamParams& s_;
  const Block& block_;
  const QuantizeGroup& group_;
  unsigned row_, channel_;
  float x_[2][kChunks][kChannels];
};

}  // namespace fa3::hopper
