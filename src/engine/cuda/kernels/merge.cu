// SPDX-License-Identifier: Apache-2.0
// lse = log sum_i exp(lse_i), o = sum_i exp(lse_i - lse) o_i. A warp has a row of a head; or, where
// there are few rows of many partials, the warps of a block share out a row's partials. Limited by
// memory: loads wait for nothing that they need not wait for.
#include "engine/cuda/kernels/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/output_gate.cuh"

namespace fa3::cuda {
namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int64_t kMostCtas = 1 << 20;  // beyond, warps take several rows
constexpr int64_t kFewRows = 4096;      // up to here, a block for each occupies the device
constexpr float kInfinity = __builtin_inff();

// exp(x - shift). Partials of an infinite lse share the row.
__device__ float weight_of(float x, float shift) {
  return x == shift ? 1.0f : expf(x - shift);
}

// What the lanes know of the row's lse: their maximum, and the sum of weights against it.
struct RowWeights {
  float shift = 0.0f, sum = 0.0f;

  template <class LseOf>
  __device__ RowWeights(int64_t count, const LseOf& lse_of, int lane) {
    float max = -kInfinity;
    for (int64_t i = lane; i < count; i += kWarpSize) max = fmaxf(max, lse_of(i));
    for (int i = 1; i < kWarpSize; i *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
    if (max != -kInfinity) shift = max;
    for (int64_t i = lane; i < count; i += kWarpSize) sum += weight_of(lse_of(i), shift);
    for (int i = 1; i < kWarpSize; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  }
};

// `Warps` of a block share the row. Lanes share out the columns. Outputs may be one of the
// partials: a column of all of them is read before it is written, and so is the lse.
template <class Out, int Warps, bool Gated>
__device__ void merge_one_row(const MergeProblem& p, const GateParams& gate, int64_t batch,
                              int64_t row, int64_t head) {
  // Every eighth partial has a sum of its own, however many warps there are: so the bits do not go
  // by the number of rows.
  constexpr int kSums = kWarpsPerBlock / Warps;
  static_assert(Warps == 1 || kSums == 1);
  __shared__ float of_warp[Warps][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize % Warps;
  const auto wait = [] { Warps > 1 ? __syncthreads() : __syncwarp(); };
  const float* const lse_partial = p.lse_partial.data + batch * p.lse_partial.batch_stride +
                                   head * p.lse_partial.head_stride +
                                   row * p.lse_partial.row_stride;
  const float* const o_partial = p.o_partial.at<const float>(batch, row, head);
  // What lies apart is the last.
  const float* const lse_other = p.other.lse.data + batch * p.other.lse.batch_stride +
                                 head * p.other.lse.head_stride + row * p.other.lse.row_stride;
  const float* const o_other = p.other.o.at<const float>(batch, row, head);
  const int64_t count = p.num_partials + (p.other.on ? 1 : 0);
  const auto lse_of = [&](int64_t i) {
    return i == p.num_partials ? *lse_other : lse_partial[i * p.lse_partial_stride];
  };
  const RowWeights weights(count, lse_of, lane);
  const float lse = weights.sum == 0 ? -kInfinity : weights.shift + logf(weights.sum);
  const float inverse = weights.sum == 0 ? 0.0f : 1 / weights.sum;
  Out* const o = static_cast<Out*>(p.o.data) + batch * p.o.batch_stride + row * p.o.row_stride +
                 head * p.o.head_stride;
  for (int64_t first = 0; first < p.head_dim_v; first += kWarpSize) {
    const int64_t c = first + lane;
    const bool exists = c < p.head_dim_v;
    float sums[kSums] = {};
    for (int64_t first_of = warp; first_of < count; first_of += kWarpsPerBlock) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        const int64_t i = first_of + j;
        if (i >= count) break;
        const float* const o_i = i == p.num_partials ? o_other : o_partial + i * p.o_partial_stride;
        const float x = exists ? o_i[c] : 0.0f;
        const float weight = weight_of(lse_of(i), weights.shift) * inverse;
        // A partial without keys has weight 0 and counts for nothing, whatever its o holds.
        if (weight != 0) sums[j] = fmaf(weight, x, sums[j]);
      }
    }
    float value = 0;
    if constexpr (Warps > 1) {
      of_warp[warp][lane] = sums[0];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Warps; ++i) value += of_warp[i][lane];
      __syncthreads();
    } else {
#pragma unroll
      for (int j = 0; j < kSums; ++j) value += sums[j];
    }
    if (exists && warp == 0) {
      if constexpr (Gated) {
        const int64_t gate_row = gate.logits.strides.offset(int(batch), int(head), int(row));
        value = gated_number(value, gate, gate_row, int(c));
      }
      o[c] = Out(value);
    }
  }
  wait();
  if (p.lse.data != nullptr && warp == 0 && lane == 0) {
    p.lse.data[batch * p.lse.batch_stride + head * p.lse.head_stride + row * p.lse.row_stride] =
        lse;
  }
}

template <class Out, int WarpsOfRow, bool Gated>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    merge_kernel(const __grid_constant__ MergeProblem p, const __grid_constant__ GateParams gate) {
  constexpr int kRows = kWarpsPerBlock / WarpsOfRow;  // of a block
  const int64_t all = p.batch * p.rows * p.heads;
  const int64_t first = int64_t{blockIdx.x} * kRows + threadIdx.x / (WarpsOfRow * kWarpSize);
  for (int64_t i = first; i < all; i += int64_t{gridDim.x} * kRows) {
    merge_one_row<Out, WarpsOfRow, Gated>(p, gate, i / (p.rows * p.heads), i / p.heads % p.rows,
                                          i % p.heads);
  }
}

template <class Out, bool Gated>
cudaError_t launch(const MergeProblem& p, const GateParams& gate, cudaStream_t stream) {
  const int64_t rows = p.batch * p.rows * p.heads;
  if (rows == 0) return cudaSuccess;
  const bool shared = p.num_partials >= kWarpsPerBlock && rows <= kFewRows;
  const int64_t rows_of_block = shared ? 1 : kWarpsPerBlock;
  const int64_t blocks = std::min(ceil_div(rows, rows_of_block), kMostCtas);
  const auto kernel =
      shared ? merge_kernel<Out, kWarpsPerBlock, Gated> : merge_kernel<Out, 1, Gated>;
  kernel<<<dim3(unsigned(blocks)), kWarpsPerBlock * kWarpSize, 0, stream>>>(p, gate);
  return cudaPeekAtLastError();
}

template <class Out>
cudaError_t launch(const MergeProblem& p, const GateParams& gate, cudaStream_t stream) {
  return gate.kind == Gate::kNone ? launch<Out, false>(p, gate, stream)
                                  : launch<Out, true>(p, gate, stream);
}

}  // namespace

Status run_merge(const MergeProblem& problem, void* stream, const GateParams& gate) {
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    error = problem.o.dtype == DType::float32   ? launch<float>(problem, gate, on)
            : problem.o.dtype == DType::float16 ? launch<__half>(problem, gate, on)
                                                : launch<__nv_bfloat16>(problem, gate, on);
  }
  return finish(error, "merge");
}

}  // namespace fa3::cuda
