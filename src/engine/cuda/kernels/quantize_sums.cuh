// SPDX-License-Identifier: Apache-2.0
// The means of a tensor's channels: sums of blocks of rows, and sums of these. Next: quantize.cu.
#pragma once

#include "core/workspace.h"
#include "engine/cuda/kernels/quantize_stream.cuh"

namespace fa3::cuda {

constexpr int kFoursThreads = 128;
constexpr int kMostChannels = kWarpSize * kChannels;

inline int64_t blocks_of(const QuantizeProblem& p) {
  return descale_blocks(p.lengths.max);
}

inline QuantizerParts allocate(const QuantizeProblem& p, WorkspaceAllocator& allocator) {
  QuantizerParts parts;
  if (p.centred) {
    parts.sums = allocator.take<float>(p.batch, p.heads, blocks_of(p), p.head_dim);
    parts.means = allocator.take<float>(p.batch, p.heads, p.head_dim);
  }
  if (p.descale.scaling != Scaling::per_block) {
    parts.largest = allocator.take<float>(p.batch, p.heads, blocks_of(p));
  }
  return parts;
}

// Writes 0 to the rows of y that no sequence uses, in front of the kernels that write the others.
cudaError_t clear_unused_rows(const QuantizeProblem& p, cudaStream_t stream);

// Adds up a block's rows: a thread has four neighbouring channels, those of all heads one after the
// other, from `part` * kFoursThreads on.
template <class T>
__device__ void add_up(const StreamParams& s, int64_t sequence, int64_t index, unsigned part) {
  const QuantizeProblem& p = s.p;
  const int fours = int(p.head_dim) / 4, four = int(part) * kFoursThreads + int(threadIdx.x);
  if (four / fours >= p.heads) return;
  const Block block(p, sequence, four / fours, index);
  const int channel = four % fours * 4;
  const T* x = p.x.at<T>(block.b, block.first_row, block.head) + channel;
  float4 sum{};
  const auto add = [&](uint2 pairs) {
    const float2 a = to_float2<T>(pairs.x), b = to_float2<T>(pairs.y);
    sum = {__fadd_rn(sum.x, a.x), __fadd_rn(sum.y, a.y), __fadd_rn(sum.z, b.x),
           __fadd_rn(sum.w, b.y)};
  };
  if (block.num_rows == kRows) {
#pragma unroll
    for (int row = 0; row < kRows; ++row, x += p.x.row_stride) {
      add(*reinterpret_cast<const uint2*>(x));
    }
  } else {
    for (int row = 0; row < block.num_rows; ++row, x += p.x.row_stride) {
      add(*reinterpret_cast<const uint2*>(x));
    }
  }
  float* const to = s.parts.sums + block.place(p, s.blocks) * p.head_dim + channel;
  *reinterpret_cast<float4*>(to) = sum;
}

// A head's mean: its blocks' sums, one after the other, over the number of rows. A thread has a
// channel; kAhead: sums that are loaded at once.
template <int kAhead>
__device__ void find_mean(const StreamParams& s, int64_t head, float* means) {
  const QuantizeProblem& p = s.p;
  const int dim = static_cast<int>(p.head_dim), channel = static_cast<int>(threadIdx.x);
  const bool mine = channel < dim;
  const float* sums = s.parts.sums + head * s.blocks * dim + (mine ? channel : 0);
  float mean = 0.0f;
  for (int left = int(s.blocks); left > 0; left -= kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = i < left ? __ldcg(sums) : 0.0f;
      sums += dim;
    }
#pragma unroll
    for (float sum : ahead) mean = __fadd_rn(mean, sum);  // + 0 changes nothing
  }
  mean = mean_of(p, head / p.heads, mean);
  means[channel] = mean;
  if (mine) s.parts.means[head * p.head_dim + channel] = mean;
  __syncthreads();
  if (channel < kWarpSize) store_mean(p, s.mixing, head / p.heads, head % p.heads, means);
}

}  // namespace fa3::cuda
