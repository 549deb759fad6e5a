// SPDX-License-Identifier: Apache-2.0
// See prepare_e4m3.h. Limited by memory bandwidth: V is read once and written once, in whole lines
// of memory. A warp transposes what it has copied itself, so that none waits for another one's
// loads, and copies go past the registers, so that as many are on their way as shared memory holds.
#include "engine/hopper/fp8/prepare_e4m3.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "engine/cuda/tile/row_owner.h"
#include "engine/hopper/fp8/value_part.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {
namespace {

constexpr int kScoreWarps = 8;    // of a CTA that adds scores
constexpr int kLaneNumbers = 16;  // of q, that a lane adds up
constexpr int kScaleWarps = 4;    // of a CTA that prepares a head's scales

// A warp's channels, for all keys of the CTA, are squares one behind the other.
constexpr int kChannels = tile::kSquare, kBlocks = kPartBlocks, kWarpBytes = kPartBytes;

// Where a chunk lies among a warp's squares.
__device__ int place(int key_square, int row, int column) {
  constexpr tile::TileLayout kSquareLayout{tile::kSquare, tile::kSquare, 1};
  return key_square * tile::kSquareBytes + kSquareLayout.chunk_offset(row, column);
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

// A warp for each 64 channels; blockIdx: (kPreparedKeys keys, kv head, sequence).
__global__ void __launch_bounds__(kMostPartWarps* ptx::kLanes)
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
  if (warp == 0) write_scales(p, keys.count, {sequence, head, int(blockIdx.x)}, all_zero);
}

// A warp for each part of keys; blockIdx: (parts, head, sequence). That all of a block's values are
// zeros is not known: then weights of its keys are small numbers, whose sum is right.
__global__ void __launch_bounds__(kScaleWarps* ptx::kLanes)
    prepare_scales_of_parts(const __grid_constant__ E4m3Preparation p, int keys) {
  ptx::griddepcontrol_launch_dependents();
  const int head = int(blockIdx.y), sequence = int(blockIdx.z), thread = int(threadIdx.x);
  if (p.tile_counter && thread == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    *p.tile_counter = 0;
  }
  const int part = int(blockIdx.x) * kScaleWarps + thread / ptx::kLanes;
  if (part < p.padded_keys / kPreparedKeys) write_scales(p, keys, {sequence, head, part}, false);
}

// A lane has 16 numbers of a row, 16 bytes; as many lanes as a power of two share the row.
__host__ __device__ int lanes_of_row(int64_t columns) {
  int lanes = 1;
  while (lanes * kLaneNumbers < columns) lanes *= 2;
  return lanes;
}

// blockIdx: (rows, head, batch).
__global__ void __launch_bounds__(kScoreWarps* cuda::kWarpSize)
    add_scores(const __grid_constant__ MeanScores p, int lanes) {
  const int thread = int(threadIdx.x), column = thread % lanes * kLaneNumbers;
  const int row = (int(blockIdx.x) * kScoreWarps * cuda::kWarpSize + thread) / lanes;
  const int head = int(blockIdx.y), batch = int(blockIdx.z);
  cuda::OwnedRow owned{.b = batch, .row = row, .from = row, .used = row < p.rows};
  if (owned.used && !p.lengths_q.alike()) {
    owned = cuda::owned_row(p.lengths_q, p.sequences, int64_t{batch} * p.rows + row);
  }
  float sum = 0.0f;
  if (owned.used && column < p.q.columns) {
    const uint8_t* const q = p.q.at<Element::kE4m3>(batch, head, row) + column;
    const float* const mean = p.mean.at(owned.b, head / p.heads_per_kv_head) + column;
    union {
      uint4 all;
      __nv_fp8_e4m3 each[kLaneNumbers];
    } numbers{*reinterpret_cast<const uint4*>(q)};  // TMA reads q, at such addresses
#pragma unroll
    for (int i = 0; i < kLaneNumbers; ++i) sum += float(numbers.each[i]) * mean[i];
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  if (!owned.used || column != 0) return;
  const int block = int(owned.row) / kDescaleRows;
  const float scale = scale_of(p.query_scales, int(owned.b), head, block) * p.scale;
  p.lse.data[p.lse.strides.offset(batch, head, row)] += sum * scale;
}

}  // namespace

cudaError_t prepare_e4m3(const E4m3Preparation& p, cudaStream_t stream) {
  const dim3 grid(unsigned(p.padded_keys / kPreparedKeys), unsigned(p.kv_heads),
                  unsigned(std::max(p.sequences, 1)));
  const int warps = warps_of_part(p.v.columns);
  prepare<<<grid, unsigned(warps) * cuda::kWarpSize, size_t(warps) * kWarpBytes, stream>>>(p);
  return cudaPeekAtLastError();
}

cudaError_t prepare_scales(const E4m3Preparation& p, int keys, cudaStream_t stream) {
  const int parts = p.padded_keys / kPreparedKeys;
  const dim3 grid(unsigned((parts + kScaleWarps - 1) / kScaleWarps), unsigned(p.kv_heads),
                  unsigned(p.sequences));
  prepare_scales_of_parts<<<grid, kScaleWarps * ptx::kLanes, 0, stream>>>(p, keys);
  return cudaPeekAtLastError();
}

cudaError_t add_mean_scores(const MeanScores& p, cudaStream_t stream) {
  if (p.sequences == 0) return cudaSuccess;
  const int lanes = lanes_of_row(p.q.columns);
  const int rows = kScoreWarps * cuda::kWarpSize / lanes;  // of a CTA
  const dim3 grid(unsigned((p.rows + rows - 1) / rows), unsigned(p.heads), unsigned(p.batches));
  add_scores<<<grid, kScoreWarps * cuda::kWarpSize, 0, stream>>>(p, lanes);
  return cudaPeekAtLastError();
}

}  // namespace fa3::hopper
