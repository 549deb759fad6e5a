// SPDX-License-Identifier: Apache-2.0
// See prepare_e4m3.h. Limited by memory bandwidth: V is read once and written once, in whole lines
// of memory.
#include "engine/hopper/fp8/prepare_e4m3.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/byte_square.h"

namespace fa3::hopper {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarpSize;
constexpr int kBlocks = kPreparedKeys / kDescaleRows;
static_assert(kDescaleRows == tile::kSquare);

// Where a chunk lies among the CTA's squares, each of kDescaleRows keys and as many channels.
__device__ int place(int channel_square, int key_square, int row, int column) {
  constexpr tile::TileLayout kSquareLayout{tile::kSquare, tile::kSquare, 1};
  return (channel_square * kBlocks + key_square) * tile::kSquareBytes +
         kSquareLayout.chunk_offset(row, column);
}

__device__ float scale_of(const Descales<const float>& scales, int64_t batch, int64_t head,
                          int64_t block) {
  return scales.data ? *scales.at(batch, head, block) : 1.0f;
}

// The keys of a sequence, wherever they lie. The arrays may hold anything.
struct Keys {
  int entry = 0;  // of V, or of the page table
  int begin = 0;
  int count = 0;

  __device__ Keys(const E4m3Preparation& p, int sequence) {
    if (sequence >= p.sequences) return;
    const Rows rows = p.lengths.clamped_rows_of(sequence);
    const int64_t elsewhere = p.places.elsewhere ? p.places.entry_of(sequence) : 0;
    const bool exists = !p.places.elsewhere || p.places.has_entry(elsewhere);
    entry = p.places.elsewhere ? int(elsewhere) : p.lengths.packed() ? 0 : sequence;
    begin = int(rows.begin);
    count = exists ? int(rows.used) : 0;
  }

  // Null: there is no such key, or its page does not exist.
  __device__ const uint8_t* values(const E4m3Preparation& p, int head, int key) const {
    if (key >= count) return nullptr;
    const int row = begin + key;
    if (!p.places.paged()) return p.v.at<Element::kE4m3>(entry, head, row);
    const int page_size = int(p.places.page_size);
    const int page = p.places.page_table[entry * p.places.table_stride + row / page_size];
    return p.places.has_page(page) ? p.v.at<Element::kE4m3>(page, head, row % page_size) : nullptr;
  }
};

// 16 channels of a key, whose address may be any multiple of 4 bytes.
__device__ uint4 load_chunk(const uint8_t* values) {
  if (reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0) {
    return *reinterpret_cast<const uint4*>(values);
  }
  const auto* const words = reinterpret_cast<const uint32_t*>(values);
  return {words[0], words[1], words[2], words[3]};
}

// Brings the CTA's keys to shared memory, a row of squares for each 64 channels. seen[i] becomes 1
// if block i of the keys is not all zeros.
__device__ void load_keys(const E4m3Preparation& p, const Keys& keys, int head, uint8_t* squares,
                          int (&seen)[kBlocks]) {
  constexpr int kAtOnce = 4;  // loads of a thread on their way
  const int chunks_of_key = p.v.columns / tile::kChunkBytes;
  const int chunks = kPreparedKeys * chunks_of_key;
  const int first_key = int(blockIdx.x) * kPreparedKeys;
  for (int first = int(threadIdx.x); first < chunks; first += kAtOnce * kThreads) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      if (at >= chunks) break;
      const uint8_t* const values = keys.values(p, head, first_key + at / chunks_of_key);
      loaded[i] = values ? load_chunk(values + at % chunks_of_key * tile::kChunkBytes) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      if (at >= chunks) break;
      const int key = at / chunks_of_key, channel = at % chunks_of_key * tile::kChunkBytes;
      *reinterpret_cast<uint4*>(squares + place(channel / tile::kSquare, key / tile::kSquare,
                                                key % tile::kSquare, channel % tile::kSquare)) =
          loaded[i];
      const uint32_t all = loaded[i].x | loaded[i].y | loaded[i].z | loaded[i].w;
      if ((all & 0x7f7f7f7fu) != 0) seen[key / kDescaleRows] = 1;
    }
  }
}

// By a warp, where it lies.
__device__ void transpose_square(uint32_t square) {
  const int lane = int(threadIdx.x) % cuda::kWarpSize;
  const uint32_t selector = tile::join_selector(lane), other = selector ^ tile::kOtherMatrix;
#pragma unroll
  for (int step = 0; step < tile::kSquareSteps; ++step) {
    uint32_t parts[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const tile::PartPair from = tile::part_pair(step, i);
      ptx::ldmatrix_x4_trans(from.address(square + tile::load_offset(lane, from.below)), parts[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const tile::PartPair to = tile::part_pair(step, i).transposed();
      const auto& [a, b, c, d] = parts[i];
      ptx::stmatrix_x4(to.address(square + tile::store_offset(lane, to.below)),
                       {__byte_perm(a, b, selector), __byte_perm(a, b, other),
                        __byte_perm(c, d, selector), __byte_perm(c, d, other)});
    }
  }
}

// Each channel's keys, which lie side by side.
__device__ void store_channels(const E4m3Preparation& p, int sequence, int head,
                               const uint8_t* squares) {
  constexpr int kChunks = kPreparedKeys / tile::kChunkBytes;  // of a channel
  const int64_t first_row = (int64_t{sequence} * p.kv_heads + head) * p.v.columns;
  for (int at = int(threadIdx.x); at < p.v.columns * kChunks; at += kThreads) {
    const int channel = at / kChunks, key = at % kChunks * tile::kChunkBytes;
    const auto* const from = reinterpret_cast<const uint4*>(
        squares + place(channel / tile::kSquare, key / tile::kSquare, channel % tile::kSquare,
                        key % tile::kSquare));
    uint8_t* const to = p.transposed + (first_row + channel) * p.padded_keys;
    *reinterpret_cast<uint4*>(to + int64_t{blockIdx.x} * kPreparedKeys + key) = *from;
  }
}

// The largest scale of the head's values; all threads call it, alike.
__device__ float largest_scale(const E4m3Preparation& p, int keys, int sequence, int head) {
  __shared__ int largest;
  const int thread = int(threadIdx.x);
  const int blocks = int(descale_blocks(keys));
  if (p.value_scales.scaling != Scaling::per_block) {
    const float scale = scale_of(p.value_scales, sequence, head, 0);
    return __float_as_int(scale) > 0 ? scale : 1.0f;
  }
  if (thread == 0) largest = 0;
  __syncthreads();
  int mine = 0;
  for (int block = thread; block < blocks; block += kThreads) {
    mine = max(mine, __float_as_int(scale_of(p.value_scales, sequence, head, block)));
  }
  if (mine > 0) atomicMax(&largest, mine);
  __syncthreads();
  return largest > 0 ? __int_as_float(largest) : 1.0f;
}

// What values of this scale lose against the head's largest. Not more than 2^-100, so that the
// inverse stays finite. All zeros lose nothing: whatever their scale, their P count.
__device__ float boost_of(bool all_zero, float scale, float largest) {
  return all_zero ? 0.0f : fmaxf(log2f(scale / largest), -100.0f);
}

int num_squares(int columns) {
  return (columns + tile::kSquare - 1) / tile::kSquare * kBlocks;
}

// blockIdx: (kPreparedKeys keys, kv head, sequence).
__global__ void __launch_bounds__(kThreads)
    prepare(const __grid_constant__ E4m3Preparation p, int num_squares) {
  extern __shared__ __align__(1024) uint8_t squares[];
  __shared__ int seen[kBlocks];
  // The kernel behind fills an SM: its CTAs come as these go.
  ptx::griddepcontrol_launch_dependents();
  const int head = int(blockIdx.y), sequence = int(blockIdx.z), thread = int(threadIdx.x);
  const Keys keys(p, sequence);
  if (p.tile_counter && thread == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    *p.tile_counter = 0;
  }
  // Whole blocks of the forward kernel, up to the one that follows the last key: tiles whose rows
  // see nothing may visit it.
  if (int(blockIdx.x) * kPreparedKeys / p.step * p.step > keys.count) return;
  if (thread < kBlocks) seen[thread] = 0;
  __syncthreads();
  load_keys(p, keys, head, squares, seen);
  const float largest = largest_scale(p, keys.count, sequence, head);
  __syncthreads();
  for (int i = thread / cuda::kWarpSize; i < num_squares; i += kWarps) {
    transpose_square(ptx::cvta_to_shared(squares + i * tile::kSquareBytes));
  }
  __syncthreads();
  store_channels(p, sequence, head, squares);
  if (thread >= kBlocks) return;
  const int64_t row = int64_t{sequence} * p.kv_heads + head;
  const int block = int(blockIdx.x) * kBlocks + thread;
  const bool used = block * kDescaleRows < keys.count;
  const float value = used ? scale_of(p.value_scales, sequence, head, block) : largest;
  p.prepared[row * (p.padded_keys / kDescaleRows) + block] = {
      .key = used ? scale_of(p.key_scales, sequence, head, block) : 1.0f,
      .boost = boost_of(!seen[thread], value, largest)};
  if (block == 0) p.largest_of_heads[row] = largest;
}

// A warp for each row of q; blockIdx: (rows, head, batch).
__global__ void __launch_bounds__(kWarps* cuda::kWarpSize)
    add_scores(const __grid_constant__ MeanScores p) {
  const int lane = int(threadIdx.x) % cuda::kWarpSize;
  const int row = int(blockIdx.x) * kWarps + int(threadIdx.x) / cuda::kWarpSize;
  const int head = int(blockIdx.y), batch = int(blockIdx.z);
  if (row >= p.rows) return;
  const uint8_t* const q = p.q.at<Element::kE4m3>(batch, head, row);
  const float* const mean = p.mean.at(batch, head / p.heads_per_kv_head);
  float sum = 0.0f;
  for (int c = lane; c < p.q.columns; c += cuda::kWarpSize) {
    __nv_fp8_e4m3 number;
    number.__x = q[c];
    sum += float(number) * mean[c];
  }
  for (int distance = cuda::kWarpSize / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  const float scale = scale_of(p.query_scales, batch, head, row / kDescaleRows) * p.scale;
  if (lane == 0) p.lse.data[p.lse.strides.offset(batch, head, row)] += sum * scale;
}

}  // namespace

cudaError_t prepare_e4m3(const E4m3Preparation& p, cudaStream_t stream) {
  const dim3 grid(unsigned(p.padded_keys / kPreparedKeys), unsigned(p.kv_heads),
                  unsigned(std::max(p.sequences, 1)));
  const int squares = num_squares(p.v.columns);
  prepare<<<grid, kThreads, size_t(squares) * tile::kSquareBytes, stream>>>(p, squares);
  return cudaPeekAtLastError();
}

cudaError_t add_mean_scores(const MeanScores& p, cudaStream_t stream) {
  const dim3 grid(unsigned((p.rows + kWarps - 1) / kWarps), unsigned(p.heads), unsigned(p.batches));
  add_scores<<<grid, kWarps * cuda::kWarpSize, 0, stream>>>(p);
  return cudaPeekAtLastError();
}

}  // namespace fa3::hopper
