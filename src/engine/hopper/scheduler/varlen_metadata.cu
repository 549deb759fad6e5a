// SPDX-License-Identifier: Apache-2.0
// A counting sort: how many entries each bucket of lengths needs, where each bucket begins, then
// every sequence takes its entries there. Equal lengths come in any order, which changes no result.
// Up to 32 sequences, a lane each, count what comes before them instead: a small call waits for it.
// The next kernel starts meanwhile, and waits for this one's end itself (PDL).
#include "core/ceil_div.h"
#include "engine/hopper/scheduler/side_kernels.h"
#include "engine/hopper/scheduler/varlen_metadata.h"

#include "engine/cuda/host/launch.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {
namespace {

constexpr int kThreads = VarlenMetadata::kBuckets;  // one for each bucket
using Count = unsigned long long;  // wrong lengths may add up to more than there is room for

// The sum of the values of the threads before this one; *all: of all threads.
__device__ Count sum_before(Count value, Count* all) {
  __shared__ Count warp_sum[kThreads / cuda::kWarpSize];
  const int lane = int(threadIdx.x) % cuda::kWarpSize, warp = int(threadIdx.x) / cuda::kWarpSize;
  Count sum = value;
  for (int distance = 1; distance < cuda::kWarpSize; distance *= 2) {
    const Count other = __shfl_up_sync(0xffffffff, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == cuda::kWarpSize - 1) warp_sum[warp] = sum;
  __syncthreads();
  Count before = sum - value;
  *all = 0;
  for (int w = 0; w < kThreads / cuda::kWarpSize; ++w) {
    if (w < warp) before += warp_sum[w];
    *all += warp_sum[w];
  }
  return before;
}

// Adds the numbers of all lanes that name this sum, in one step; what it was before a lane's turn.
// 64-bit additions in shared memory are tried until nobody comes between, and short sequences all
// name one sum.
__device__ Count add(Count* sum, int number) {
  const int mine = int(threadIdx.x) % cuda::kWarpSize;
  const unsigned lanes = __match_any_sync(__activemask(), reinterpret_cast<uintptr_t>(sum));
  const int first = __ffs(int(lanes)) - 1;
  Count before = 0, all = 0;
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    const int lane = __ffs(int(left)) - 1;
    const int other = __shfl_sync(lanes, number, lane);
    if (lane < mine) before += Count(other);
    all += Count(other);
  }
  const Count start = mine == first ? atomicAdd(sum, all) : 0;
  return __shfl_sync(lanes, start, first) + before;
}

// Stores how many entries there are, at most as many as there is room for.
__device__ int store_length(const VarlenMetadata& list, Count entries) {
  const int all = int(min(entries, Count(list.capacity)));
  if (threadIdx.x == 0) {
    *list.num_entries = all;
    if (list.tile_counter) *list.tile_counter = 0;
  }
  return all;
}

__global__ void __launch_bounds__(kThreads)
    varlen_metadata_kernel(const __grid_constant__ VarlenMetadata list) {
  __shared__ Count next_entry[VarlenMetadata::kBuckets];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int thread = int(threadIdx.x);
  next_entry[thread] = 0;
  __syncthreads();
  for (int b = thread; b < list.num_sequences(); b += kThreads) {
    const SequenceTiles s = list.sequence(b);
    add(&next_entry[list.bucket(s)], s.order.num_m_blocks);
  }
  __syncthreads();
  Count sum = 0;
  const Count first = sum_before(next_entry[thread], &sum);
  const int all = store_length(list, sum);
  __syncthreads();
  next_entry[thread] = first;
  __syncthreads();
  for (int b = thread; b < list.num_sequences(); b += kThreads) {
    const SequenceTiles s = list.sequence(b);
    const Count at = add(&next_entry[list.bucket(s)], s.order.num_m_blocks);
    if (at < Count(all)) list.write(s, int(at), all);
  }
}

// A lane for each sequence, and then a warp for each to write its entries.
constexpr int kFewSequences = cuda::kWarpSize, kFewThreads = 8 * cuda::kWarpSize;

__global__ void __launch_bounds__(kFewThreads)
    varlen_metadata_of_few_kernel(const __grid_constant__ VarlenMetadata list) {
  __shared__ SequenceTiles sequences[kFewSequences];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int warp = int(threadIdx.x) / cuda::kWarpSize, lane = int(threadIdx.x) % cuda::kWarpSize;
  if (warp == 0) {
    const bool exists = lane < list.num_sequences();
    const SequenceTiles s = exists ? list.sequence(lane) : SequenceTiles{};
    const int bucket = exists ? list.bucket(s) : VarlenMetadata::kBuckets;
    Count before = 0, sum = 0;
    for (int other = 0; other < kFewSequences; ++other) {
      const int rows = __shfl_sync(0xffffffff, s.order.num_m_blocks, other);
      const int place = __shfl_sync(0xffffffff, bucket, other);
      if (place < bucket || (place == bucket && other < lane)) before += Count(rows);
      sum += Count(rows);
    }
    const int all = store_length(list, sum);
    sequences[lane] = before < Count(all) ? list.placed(s, int(before), all) : SequenceTiles{};
  }
  __syncthreads();
  for (int b = warp; b < list.num_sequences(); b += kFewThreads / cuda::kWarpSize) {
    const SequenceTiles s = sequences[b];
    const int end = min(s.first_entry + s.order.num_m_blocks, list.capacity);
    for (int i = s.first_entry + lane; i < end; i += cuda::kWarpSize) list.entries[i] = s;
  }
}

}  // namespace

cudaError_t prepare_varlen_metadata(const VarlenMetadata& list, cudaStream_t stream) {
  const bool few = list.num_sequences() <= kFewSequences;
  const auto kernel = few ? &varlen_metadata_of_few_kernel : &varlen_metadata_kernel;
  VarlenMetadata params = list;
  return launch(reinterpret_cast<const void*>(kernel), 1, few ? kFewThreads : kThreads, 0, &params,
                {.pdl = true}, stream);
}

}  // namespace fa3::hopper
