// SPDX-License-Identifier: Apache-2.0
// A sort by counting: how many entries each bucket of lengths needs, where each bucket begins, then
// every sequence takes its entries there. Equal lengths come in any order, which changes no result.
#include "engine/hopper/list_sequences.h"

#include "engine/cuda/fragment.h"

namespace fa3::hopper {
namespace {

constexpr int kThreads = SequenceList::kBuckets;  // one for each bucket
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

__global__ void __launch_bounds__(kThreads)
    list_sequences_kernel(const __grid_constant__ SequenceList list) {
  __shared__ Count next_entry[SequenceList::kBuckets];
  const int thread = int(threadIdx.x);
  next_entry[thread] = 0;
  __syncthreads();
  for (int b = thread; b < list.num_sequences(); b += kThreads) {
    const SequenceTiles s = list.sequence(b);
    atomicAdd(&next_entry[list.bucket(s)], Count(s.order.num_m_blocks));
  }
  __syncthreads();
  Count sum = 0;
  const Count first = sum_before(next_entry[thread], &sum);
  const int all = int(min(sum, Count(list.capacity)));
  if (thread == 0) {
    *list.num_entries = all;
    if (list.ticket_counter) *list.ticket_counter = 0;
  }
  __syncthreads();
  next_entry[thread] = first;
  __syncthreads();
  for (int b = thread; b < list.num_sequences(); b += kThreads) {
    const SequenceTiles s = list.sequence(b);
    const Count at = atomicAdd(&next_entry[list.bucket(s)], Count(s.order.num_m_blocks));
    if (at < Count(all)) list.write(s, int(at), all);
  }
}

}  // namespace

cudaError_t list_sequences(const SequenceList& list, cudaStream_t stream) {
  list_sequences_kernel<<<1, kThreads, 0, stream>>>(list);
  return cudaPeekAtLastError();
}

}  // namespace fa3::hopper
