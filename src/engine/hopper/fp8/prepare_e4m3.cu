// SPDX-License-Identifier: Apache-2.0
// See prepare_e4m3.h. Limited by memory bandwidth: V is read once and written once.
#include "engine/hopper/fp8/prepare_e4m3.h"

#include <cuda_fp8.h>

#include <algorithm>

namespace fa3::hopper {
namespace {

constexpr int kChannels = 4;  // of a thread: a word of each key
constexpr int kKeys = 32;     // of a thread: 32 bytes of each channel
constexpr int kParts = kPreparedKeys / kKeys;
constexpr int kBlocks = kPreparedKeys / kDescaleRows;

__device__ float scale_of(const Descales<const float>& scales, int64_t batch, int64_t head,
                          int64_t block) {
  return scales.data ? *scales.at(batch, head, block) : 1.0f;
}

// Four words of four bytes: byte j of word i becomes byte i of word j.
__device__ void transpose_bytes(const uint32_t (&in)[4], uint32_t (&out)[4]) {
  const uint32_t low01 = __byte_perm(in[0], in[1], 0x5140);
  const uint32_t high01 = __byte_perm(in[0], in[1], 0x7362);
  const uint32_t low23 = __byte_perm(in[2], in[3], 0x5140);
  const uint32_t high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
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

// The keys [first, first + kKeys) of the thread's channels. True if one is not zero.
__device__ bool transpose(const E4m3Preparation& p, const Keys& keys, int sequence, int head,
                          int first, int channel) {
  uint32_t words[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const uint8_t* const values = keys.values(p, head, first + cuda::e4m3_key(i));
    words[i] = values ? *reinterpret_cast<const uint32_t*>(values + channel) : 0;
  }
  uint32_t all = 0;
  uint32_t columns[kChannels][kKeys / 4];
#pragma unroll
  for (int i = 0; i < kKeys; i += 4) {
    uint32_t transposed[4];
    transpose_bytes({words[i], words[i + 1], words[i + 2], words[i + 3]}, transposed);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      columns[c][i / 4] = transposed[c];
      all |= transposed[c];
    }
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int64_t row = (int64_t{sequence} * p.kv_heads + head) * p.v.columns + channel + c;
    auto* to = reinterpret_cast<uint4*>(p.transposed + row * p.padded_keys + first);
    to[0] = {columns[c][0], columns[c][1], columns[c][2], columns[c][3]};
    to[1] = {columns[c][4], columns[c][5], columns[c][6], columns[c][7]};
  }
  return (all & 0x7f7f7f7fu) != 0;
}

// The largest scale of the head's values; all threads call it.
__device__ float largest_scale(const E4m3Preparation& p, int keys, int sequence, int head) {
  __shared__ int largest;
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  const int threads = int(blockDim.x * blockDim.y);
  const bool one = p.value_scales.scaling != Scaling::per_block;
  const int blocks = one ? 1 : int(descale_blocks(keys));
  if (thread == 0) largest = 0;
  __syncthreads();
  int mine = 0;
  for (int block = thread; block < blocks; block += threads) {
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

// blockIdx: (kPreparedKeys keys, kv head, sequence); threadIdx: (channels, part of the keys).
__global__ void prepare(const __grid_constant__ E4m3Preparation p) {
  __shared__ int seen[kBlocks];
  const int head = int(blockIdx.y), sequence = int(blockIdx.z);
  const Keys keys(p, sequence);
  // Whole blocks of the forward kernel, up to the one that follows the last key: tiles whose rows
  // see nothing may visit it.
  if (int(blockIdx.x) * kPreparedKeys / p.step * p.step > keys.count) return;
  const int part = int(threadIdx.y), first = int(blockIdx.x) * kPreparedKeys + part * kKeys;
  const int channel = int(threadIdx.x) * kChannels;
  const bool lead = threadIdx.x == 0 && part < kBlocks;
  if (lead) seen[part] = 0;
  const float largest = largest_scale(p, keys.count, sequence, head);
  if (transpose(p, keys, sequence, head, first, channel)) seen[part * kKeys / kDescaleRows] = 1;
  __syncthreads();
  if (!lead) return;
  const int64_t row = int64_t{sequence} * p.kv_heads + head;
  const int block = int(blockIdx.x) * kBlocks + part;
  const bool used = block * kDescaleRows < keys.count;
  const float value = used ? scale_of(p.value_scales, sequence, head, block) : largest;
  p.prepared[row * (p.padded_keys / kDescaleRows) + block] = {
      .key = used ? scale_of(p.key_scales, sequence, head, block) : 1.0f,
      .boost = boost_of(!seen[part], value, largest)};
  if (block == 0) p.largest_of_heads[row] = largest;
}

constexpr int kWarps = 8;

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
  prepare<<<grid, dim3(unsigned(p.v.columns / kChannels), kParts), 0, stream>>>(p);
  return cudaPeekAtLastError();
}

cudaError_t add_mean_scores(const MeanScores& p, cudaStream_t stream) {
  const dim3 grid(unsigned((p.rows + kWarps - 1) / kWarps), unsigned(p.heads), unsigned(p.batches));
  add_scores<<<grid, kWarps * cuda::kWarpSize, 0, stream>>>(p);
  return cudaPeekAtLastError();
}

}  // namespace fa3::hopper
