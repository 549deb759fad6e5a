// SPDX-License-Identifier: Apache-2.0
// The quantizer at the speed of memory: CTAs that stay take blocks of rows one after the other. A
// warp of its own copies rows to shared memory, blocks ahead of those that quantize. Means are
// given. Next: quantize.cu.
#pragma once

#include "engine/cuda/kernels/quantize_block.cuh"
#include "engine/cuda/ptx/cp_async.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/ptx/sync.cuh"

namespace fa3::cuda {

constexpr int kOwned = 32;  // neighbouring channels of a row that a thread has
constexpr int kOwnedChunks = kOwned / kChannels;
constexpr int kStreamStages = 3;  // blocks of rows in shared memory
constexpr int kNextTiles = 4;     // what a CTA does next, which outlives its rows by a barrier

// A call's parameters.
struct StreamParams {
  QuantizeProblem p;
  Mixing mixing;
  QuantizerParts parts;
  unsigned blocks;  // of a head
  bool last_first;  // the last blocks, which have just been added up, are in the L2 cache
};

// A block's head and sequence; it is past the last one if `sequence` is that of no one.
struct QuantizeTile {
  int head, block, sequence;
};

constexpr int kWholeBarrier = 1, kQuantizingBarrier = 2;

// Threads that quantize, of a CTA; a warp more copies. Each has 32 channels of `passes` rows.
constexpr FA3_HD int stream_threads(int64_t head_dim, int passes) {
  return int(head_dim) * kRows / (kOwned * passes);
}

// Bytes of a block's rows and means.
constexpr FA3_HD int stream_stage_bytes(int64_t head_dim) {
  return int(head_dim) * (kRows * 2 + int(sizeof(float)));
}

// Where chunks lie in shared memory, 16 bytes each: so that eight lanes meet in no bank that read a
// chunk of each one's four (of 16-bit rows), or eight (of means).
template <int kChunks>
__device__ int swizzled(int chunk) {
  return chunk ^ (chunk / 8 % kChunks);
}

// Two 16-bit numbers.
template <class T>
__device__ float2 to_float2(uint32_t pair) {
  const auto* numbers = reinterpret_cast<const T*>(&pair);
  return {static_cast<float>(numbers[0]), static_cast<float>(numbers[1])};
}

// Copies the rows of a CTA's blocks, and their means.
template <class T>
class StreamCopies {
 public:
  __device__ StreamCopies(const StreamParams& s, uint32_t smem)
      : s_(s),
        smem_(smem),
        lane_(int(threadIdx.x) % kWarpSize),
        chunks_(int(s.p.head_dim) / kChannels),
        index_(blockIdx.x) {}

  // The CTA's next block; `*item` is told by the first lane.
  __device__ void next(QuantizeTile* item) {
    const unsigned heads = unsigned(s_.p.heads), all = unsigned(s_.p.batch) * heads * s_.blocks;
    const unsigned i = s_.last_first ? all - 1 - index_ : index_;
    const bool is_none = index_ >= all;
    now_ = {int(i % heads), int(i / heads % s_.blocks),
            is_none ? int(s_.p.batch) : int(i / heads / s_.blocks)};
    if (lane_ == 0) *item = now_;
    index_ += gridDim.x;
  }

  // Its rows, to the stage's place.
  __device__ void copy(int stage) {
    if (now_.sequence < s_.p.batch) {
      const uint32_t to = smem_ + uint32_t(stage * stream_stage_bytes(s_.p.head_dim));
      copy_rows(to);
      if (s_.p.centred) copy_means(to + uint32_t(chunks_ * kRows) * kChunkBytes);
    }
    cp_async_commit_group();
  }

 private:
  static constexpr int kChunkBytes = 16;

  __device__ void copy_rows(uint32_t to) const {
    const Block block(s_.p, now_.sequence, now_.head, now_.block);
    const T* const rows = s_.p.x.at<T>(block.b, block.first_row, block.head);
    if (kWarpSize % chunks_ == 0 && block.num_rows == kRows) return copy_whole(rows, to);
    // Chunk by chunk, 32 at a time.
    for (int i = lane_; i < chunks_ * kRows; i += kWarpSize) {
      const bool exists = i / chunks_ < block.num_rows;
      const T* const from = rows + i / chunks_ * s_.p.x.row_stride + i % chunks_ * kChannels;
      cp_async_16(to + uint32_t(swizzled<4>(i)) * kChunkBytes, exists ? from : rows, exists);
    }
  }

  // copy_rows() for a whole block of 64 rows, where 32 chunks are one or more rows.
  __device__ void copy_whole(const T* rows, uint32_t to) const {
    constexpr int kAtOnce = 8;
    const int64_t further = s_.p.x.row_stride * (kWarpSize / chunks_);
    rows += lane_ / chunks_ * s_.p.x.row_stride + lane_ % chunks_ * kChannels;
    to += uint32_t(swizzled<4>(lane_)) * kChunkBytes;
    for (int i = 0; i < chunks_ * kRows / kWarpSize; i += kAtOnce) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        cp_async_16(to + uint32_t(j * kWarpSize * kChunkBytes), rows, true);
        rows += further;
      }
      to += uint32_t(kAtOnce * kWarpSize * kChunkBytes);
    }
  }

  __device__ void copy_means(uint32_t to) const {
    const int64_t head = int64_t{now_.sequence} * s_.p.heads + now_.head;
    const float* const means = s_.parts.means + head * s_.p.head_dim;
    for (int i = lane_; i < int(s_.p.head_dim) / 4; i += kWarpSize) {
      cp_async_16(to + uint32_t(swizzled<8>(i)) * kChunkBytes, means + i * 4, true);
    }
  }

  const StreamParams& s_;
  uint32_t smem_;
  int lane_, chunks_;
  unsigned index_;
  QuantizeTile now_{};
};

// Signs and Hadamard matrix, in the order of mix(): the first strides are within a thread.
__device__ inline void mix_owned(const Mixing& mixing, uint32_t negated, float (&x)[kOwned]) {
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (negated << (kOwned - 1 - i) & 0x80000000u));
  }
#pragma unroll
  for (int stride = 1; stride < kOwned; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = __fadd_rn(a, b);
      x[i + stride] = __fsub_rn(a, b);
    }
  }
  for (int bit = 0; kOwned << bit < mixing.block; ++bit) {
    const float sign = __uint_as_float(0x3f800000u | threadIdx.x >> bit << 31);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, x[i], 1 << bit);
      x[i] = __fmaf_rn(x[i], sign, other);  // other + mine or other - mine, rounded once
    }
  }
#pragma unroll
  for (int i = 0; i < kOwned; ++i) x[i] = __fmul_rn(x[i], mixing.factor);
}

// The largest finite size; numbers that are not finite become NaN.
__device__ inline float largest_of(float (&x)[kOwned]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwned; ++i) largest = fmaxf(largest, fabsf(x[i]));  // NaN is none
  if (is_finite(largest)) return largest;
  largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    if (!is_finite(x[i])) x[i] = __int_as_float(0x7fffffff);
    largest = fmaxf(largest, fabsf(x[i]));
  }
  return largest;
}

__device__ inline uint32_t e4m3_of(const float* x, float inverse) {
  uint32_t pairs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pairs[i] =
        __nv_cvt_float2_to_fp8x2({__fmul_rn(x[2 * i], inverse), __fmul_rn(x[2 * i + 1], inverse)},
                                 __NV_SATFINITE, __NV_E4M3);
  }
  return __byte_perm(pairs[0], pairs[1], 0x5410);
}

// A thread's 32 numbers, from channel `channel` of the row y. Neighbours of a row exchange halves
// first, so that each store of a warp fills sectors. For all lanes; those without a row exchange
// alone.
__device__ inline void store_owned(uint8_t* y, int channel, bool is_paired, bool exists,
                                   const uint32_t (&words)[kOwned / 4]) {
  uint4 first{words[0], words[1], words[2], words[3]};
  uint4 second{words[4], words[5], words[6], words[7]};
  int distance = kOwned / 2;
  if (is_paired) {
    const bool odd = threadIdx.x % 2 != 0;
    const uint4 given = odd ? first : second;
    const uint4 got{__shfl_xor_sync(kAllLanes, given.x, 1), __shfl_xor_sync(kAllLanes, given.y, 1),
                    __shfl_xor_sync(kAllLanes, given.z, 1), __shfl_xor_sync(kAllLanes, given.w, 1)};
    if (odd) {
      first = got;
      channel -= kOwned / 2;
    } else {
      second = got;
    }
    distance = kOwned;
  }
  if (!exists) return;
  *reinterpret_cast<uint4*>(y + channel) = first;
  *reinterpret_cast<uint4*>(y + channel + distance) = second;
}

// Quantizes a CTA's blocks: a thread has the same channels of the same rows of each. In two passes
// rows are not mixed.
template <class T, int kPasses>
class StreamThread {
 public:
  __device__ explicit StreamThread(const StreamParams& s)
      : s_(s),
        dim_(int(s.p.head_dim)),
        threads_(stream_threads(dim_, kPasses)),
        row_(int(threadIdx.x) * kOwned / dim_),
        channel_(int(threadIdx.x) * kOwned % dim_) {
#pragma unroll
    for (int i = 0; i < kOwnedChunks; ++i) {
      negated_ |= uint32_t{s.mixing.negated[channel_ / kChannels + i]} << i * kChannels;
    }
  }

  // A block, whose rows and means lie in `stage`.
  __device__ void quantize(const QuantizeTile& item, uint4* stage, unsigned* largest_of_warps) {
    const Block block(s_.p, item.sequence, item.head, item.block);
    float x[kPasses][kOwned];
    load(stage, x);
    if (s_.p.centred) subtract_means(stage + dim_ / kChannels * kRows, x);
    if constexpr (kPasses == 1) {
      if (s_.p.hadamard) mix_owned(s_.mixing, negated_, x[0]);
    }
    float largest = 0.0f;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (row_of(pass) < block.num_rows) largest = fmaxf(largest, largest_of(x[pass]));
    }
    const float scale = scale_of(largest_of_cta(largest, largest_of_warps));
    if (threadIdx.x == 0) *s_.p.descale.at(block.sequence, block.head, block.index) = scale;
    const float inverse = __fdiv_rn(1.0f, scale);
    const TurnedRows turned(reinterpret_cast<uint32_t*>(stage), dim_);  // all have read the stage
    uint8_t* const y = s_.p.y.at<uint8_t>(block.b, block.first_row, block.head);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool exists = row_of(pass) < block.num_rows;
      uint32_t words[kOwned / 4];
#pragma unroll
      for (int i = 0; i < kOwned / 4; ++i) words[i] = e4m3_of(x[pass] + 4 * i, inverse);
      if (s_.p.y_transposed.on) {
        turn(turned, row_of(pass), exists, words);
      } else {
        uint8_t* const row = y + row_of(pass) * s_.p.y.row_stride;
        store_owned(row, channel_, dim_ / kOwned % 2 == 0, exists, words);
      }
    }
    if (s_.p.y_transposed.on) {
      wait_for_others();
      store_transposed(s_.p, block, turned, int(threadIdx.x), threads_);
    }
  }

 private:
  __device__ int row_of(int pass) const {
    return row_ + pass * (kRows / kPasses);
  }

  __device__ void load(const uint4* rows, float (&x)[kPasses][kOwned]) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < kOwnedChunks; ++c) {
        const int place = swizzled<4>(int(threadIdx.x) * kOwnedChunks + c);
        const uint4 chunk = rows[place + pass * threads_ * kOwnedChunks];
        const uint32_t pairs[] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 two = to_float2<T>(pairs[i]);
          x[pass][c * kChannels + 2 * i] = two.x;
          x[pass][c * kChannels + 2 * i + 1] = two.y;
        }
      }
    }
  }

  __device__ void subtract_means(const uint4* means, float (&x)[kPasses][kOwned]) const {
#pragma unroll
    for (int c = 0; c < kOwned / 4; ++c) {
      const uint4 four = means[swizzled<8>(channel_ / 4 + c)];
      const uint32_t each[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (auto& row : x) row[4 * c + i] = __fsub_rn(row[4 * c + i], __uint_as_float(each[i]));
      }
    }
  }

  // The maximum over the threads that quantize.
  __device__ float largest_of_cta(float largest, unsigned* of_warps) const {
    const int lane = int(threadIdx.x) % kWarpSize;
    const unsigned of_warp = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    if (lane == 0) of_warps[threadIdx.x / kWarpSize] = of_warp;
    wait_for_others();
    return __uint_as_float(
        __reduce_max_sync(kAllLanes, lane < threads_ / kWarpSize ? of_warps[lane] : 0));
  }

  __device__ void wait_for_others() const {
    bar_sync(kQuantizingBarrier, threads_);
  }

  __device__ void turn(const TurnedRows& turned, int row, bool exists,
                       const uint32_t (&words)[kOwned / 4]) const {
#pragma unroll
    for (int i = 0; i < kOwned / 4; i += 4) {
      const uint4 four{words[i], words[i + 1], words[i + 2], words[i + 3]};
      *turned.quad(row, channel_ / 4 + i) = exists ? four : uint4{};
    }
  }

  const StreamParams& s_;
  int dim_, threads_, row_, channel_;
  uint32_t negated_ = 0;  // a bit for each channel
};

// blockIdx: CTAs that take turns. The last warp copies.
template <class T, int kPasses, int kMostThreads, int kCtas>
__global__ void __launch_bounds__(kMostThreads, kCtas)
    quantize_stream(const __grid_constant__ StreamParams s) {
  extern __shared__ __align__(128) uint4 stages[];
  __shared__ QuantizeTile items[kNextTiles];
  __shared__ unsigned largest_of_warps[2][kWarpSize];
  constexpr int kAhead = kStreamStages - 1;
  follow_kernel_before();
  // Behind barrier i the rows of block i are there, and those of block i - 1 may be overwritten.
  if (int(threadIdx.x) >= stream_threads(s.p.head_dim, kPasses)) {
    StreamCopies<T> copies(s, cvta_to_shared(stages));
    for (int i = 0; i < kAhead; ++i) {
      copies.next(&items[i]);
      copies.copy(i);
    }
    for (int i = 0;; ++i) {
      copies.next(&items[(i + kAhead) % kNextTiles]);
      cp_async_wait_group<kAhead - 1>();
      bar_sync(kWholeBarrier, int(blockDim.x));
      if (items[i % kNextTiles].sequence >= s.p.batch) return;
      copies.copy((i + kAhead) % kStreamStages);
    }
  }
  StreamThread<T, kPasses> thread(s);
  for (int i = 0;; ++i) {
    bar_sync(kWholeBarrier, int(blockDim.x));
    const QuantizeTile item = items[i % kNextTiles];
    if (item.sequence >= s.p.batch) return;
    uint4* const stage =
        stages + i % kStreamStages * (stream_stage_bytes(s.p.head_dim) / int(sizeof(uint4)));
    thread.quantize(item, stage, largest_of_warps[i % 2]);
  }
}

}  // namespace fa3::cuda
