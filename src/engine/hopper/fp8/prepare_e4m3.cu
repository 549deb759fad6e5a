// SPDX-License-Identifier: Apache-2.0
// See prepare_e4m3.h. Limited by memory bandwidth: V is read once and written once, in whole lines
// of memory. A warp transposes what it has copied itself, so that none waits for another one's
// loads, and copies go past the registers, so that as many are on their way as shared memory holds.
#include "engine/hopper/fp8/prepare_e4m3.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/byte_square.h"

namespace fa3::hopper {
namespace {

constexpr int kScoreWarps = 8;  // of a CTA that adds scores
constexpr int kBlocks = kPreparedKeys / kDescaleRows;
static_assert(kDescaleRows == tile::kSquare);

// Channels of a warp, for all keys of the CTA, in squares one behind the other.
constexpr int kChannels = tile::kSquare, kWarpBytes = kBlocks * tile::kSquareBytes;
constexpr int kMostWarps = 256 / kChannels;

// Where a chunk lies among a warp's squares.
__device__ int place(int key_square, int row, int column) {
  constexpr tile::TileLayout kSquareLayout{tile::kSquare, tile::kSquare, 1};
  return key_square * tile::kSquareBytes + kSquareLayout.chunk_offset(row, column);
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

// 16 channels of a key, whose address may be any multiple of 4 bytes. Null: zeros.
__device__ void copy_chunk(uint32_t to, const uint8_t* values) {
  if (reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0) {
    ptx::cp_async_16(to, values, values != nullptr);
  } else {
    const auto* const words = reinterpret_cast<const uint32_t*>(values);
    ptx::st_shared_b32x4(to, {words[0], words[1], words[2], words[3]});
  }
}

// Brings a warp's channels of the CTA's keys to shared memory. Channels that V has not are zeros.
__device__ void load_keys(const E4m3Preparation& p, const Keys& keys, int head, int first_channel,
                          uint32_t squares) {
  constexpr int kChunks = kChannels / tile::kChunkBytes, kRows = ptx::kLanes / kChunks;
  const int column = ptx::lane() % kChunks * tile::kChunkBytes;
  const int channel = first_channel + column;
  const int first_key = int(blockIdx.x) * kPreparedKeys;
#pragma unroll 4
  for (int key = ptx::lane() / kChunks; key < kPreparedKeys; key += kRows) {
    const uint8_t* const values =
        channel < p.v.columns ? keys.values(p, head, first_key + key) : nullptr;
    copy_chunk(squares + place(key / tile::kSquare, key % tile::kSquare, column),
               values ? values + channel : nullptr);
  }
}

// By a warp, where it lies. Whether the lane's part of it is not all zeros.
__device__ bool transpose_square(uint32_t square) {
  const int lane = ptx::lane();
  uint32_t all = 0;
  const uint32_t selector = tile::join_selector(lane), other = selector ^ tile::kOtherMatrix;
#pragma unroll
  for (int step = 0; step < tile::kSquareSteps; ++step) {
    uint32_t parts[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const tile::PartPair from = tile::part_pair(step, i);
      ptx::ldmatrix_x4_trans(from.address(square + tile::load_offset(lane, from.below)), parts[i]);
      all |= parts[i][0] | parts[i][1] | parts[i][2] | parts[i][3];
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
  return (all & 0x7f7f7f7fu) != 0;
}

// A warp's channels, the keys of each side by side.
__device__ void store_channels(const E4m3Preparation& p, int sequence, int head, int first_channel,
                               uint32_t squares) {
  constexpr int kChunks = kPreparedKeys / tile::kChunkBytes, kRows = ptx::kLanes / kChunks;
  const int64_t first_row = (int64_t{sequence} * p.kv_heads + head) * p.v.columns + first_channel;
  const int key = ptx::lane() % kChunks * tile::kChunkBytes;
  const int channels = min(kChannels, p.v.columns - first_channel);
  uint8_t* const to = p.transposed + first_row * p.padded_keys + blockIdx.x * kPreparedKeys + key;
#pragma unroll 4
  for (int channel = ptx::lane() / kChunks; channel < channels; channel += kRows) {
    uint32_t x[4];
    ptx::ld_shared_b32x4(squares + place(key / tile::kSquare, channel, key % tile::kSquare), x);
    *reinterpret_cast<uint4*>(to + int64_t{channel} * p.padded_keys) = {x[0], x[1], x[2], x[3]};
  }
}

// The largest scale of the head's values, by a warp.
__device__ float largest_scale(const E4m3Preparation& p, int keys, int sequence, int head) {
  const bool one = p.value_scales.scaling != Scaling::per_block;
  const int blocks = one ? 1 : int(descale_blocks(keys));
  int largest = 0;  // of positive floats, bits are in their order
  for (int block = ptx::lane(); block < blocks; block += ptx::kLanes) {
    largest = max(largest, __float_as_int(scale_of(p.value_scales, sequence, head, block)));
  }
  largest = __reduce_max_sync(0xffffffff, largest);
  return largest > 0 ? __int_as_float(largest) : 1.0f;
}

// What values of this scale lose against the head's largest. Not more than 2^-100, so that the
// inverse stays finite. All zeros lose nothing: whatever their scale, their P count.
__device__ float boost_of(bool all_zero, float scale, float largest) {
  return all_zero ? 0.0f : fmaxf(log2f(scale / largest), -100.0f);
}

// A warp for each 64 channels; blockIdx: (kPreparedKeys keys, kv head, sequence).
__global__ void __launch_bounds__(kMostWarps* ptx::kLanes)
    prepare(const __grid_constant__ E4m3Preparation p) {
  extern __shared__ __align__(1024) uint8_t squares_of_all[];
  // The kernel behind fills an SM: its CTAs come as these go.
  ptx::griddepcontrol_launch_dependents();
  // The last heads first: those that the kernel behind begins with are then the newest in the L2
  // cache.
  const int head = int(gridDim.y - 1 - blockIdx.y), sequence = int(gridDim.z - 1 - blockIdx.z);
  const int thread = int(threadIdx.x);
  const Keys keys(p, sequence);
  if (p.tile_counter && thread == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    *p.tile_counter = 0;
  }
  // Whole blocks of the forward kernel, up to the one that follows the last key: tiles whose rows
  // see nothing may visit it.
  if (int(blockIdx.x) * kPreparedKeys / p.step * p.step > keys.count) return;
  const int warp = thread / ptx::kLanes, first_channel = warp * kChannels;
  const uint32_t squares = ptx::cvta_to_shared(squares_of_all + warp * kWarpBytes);
  load_keys(p, keys, head, first_channel, squares);
  ptx::cp_async_wait_all();
  __syncwarp();
  bool seen[kBlocks];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) seen[i] = transpose_square(squares + i * tile::kSquareBytes);
  __syncwarp();
  store_channels(p, sequence, head, first_channel, squares);
  bool all_zero = true;  // thread i: block i of the CTA's keys
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    if (__syncthreads_or(seen[i]) && thread == i) all_zero = false;
  }
  if (warp > 0) return;
  const float largest = largest_scale(p, keys.count, sequence, head);
  if (thread >= kBlocks) return;
  const int64_t row = int64_t{sequence} * p.kv_heads + head;
  const int block = int(blockIdx.x) * kBlocks + thread;
  const bool used = block * kDescaleRows < keys.count;
  const float value = used ? scale_of(p.value_scales, sequence, head, block) : largest;
  p.prepared[row * (p.padded_keys / kDescaleRows) + block] = {
      .key = used ? scale_of(p.key_scales, sequence, head, block) : 1.0f,
      .boost = boost_of(all_zero, value, largest)};
  if (block == 0) p.largest_of_heads[row] = largest;
}

// A warp for each row of q; blockIdx: (rows, head, batch).
__global__ void __launch_bounds__(kScoreWarps* cuda::kWarpSize)
    add_scores(const __grid_constant__ MeanScores p) {
  const int lane = int(threadIdx.x) % cuda::kWarpSize;
  const int row = int(blockIdx.x) * kScoreWarps + int(threadIdx.x) / cuda::kWarpSize;
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
  const int warps = (p.v.columns + kChannels - 1) / kChannels;
  prepare<<<grid, unsigned(warps) * cuda::kWarpSize, size_t(warps) * kWarpBytes, stream>>>(p);
  return cudaPeekAtLastError();
}

cudaError_t add_mean_scores(const MeanScores& p, cudaStream_t stream) {
  const dim3 grid(unsigned((p.rows + kScoreWarps - 1) / kScoreWarps), unsigned(p.heads),
                  unsigned(p.batches));
  add_scores<<<grid, kScoreWarps * cuda::kWarpSize, 0, stream>>>(p);
  return cudaPeekAtLastError();
}

}  // namespace fa3::hopper
