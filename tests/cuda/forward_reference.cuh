// SPDX-License-Identifier: Apache-2.0
// Attention the plain way on the GPU, in double precision, one thread block a query row: the oracle
// of the kernel tests, sharing no code with the kernels. Beside the exact output it computes what a
// naive kernel of the same element type would give (weights and output rounded), the yardstick for
// the error we allow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fa3::testing {

struct Layout4 {
  int64_t batch_stride, row_stride, head_stride;
};

struct ReferenceProblem {
  int batches, heads, kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;
  Layout4 q, k, v;
  double scale;
  bool causal;
};

template <typename T>
__device__ double rounded(double x) {
  return double(float(T(float(x))));
}

inline __device__ double block_reduce(double x, bool take_max) {
  __shared__ double partial[256];
  partial[threadIdx.x] = x;
  __syncthreads();
  double result = partial[0];
  for (int i = 1; i < 256; ++i) {
    // NaN must survive the maximum too.
    const double y = partial[i];
    result = take_max ? ((result != result || y != y) ? result + y : max(result, y)) : result + y;
  }
  __syncthreads();
  return result;
}

// Launch with grid (seqlen_q, heads, batches), 256 threads, seqlen_k doubles of shared memory.
template <typename T>
__global__ void reference_attention(ReferenceProblem p, const T* q, const T* k, const T* v,
                                    double* exact, double* naive, double* lse,
                                    double* largest_score) {
  extern __shared__ double weights[];
  const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int kv_head = head / (p.heads / p.kv_heads);
  const T* q_row = q + batch * p.q.batch_stride + row * p.q.row_stride + head * p.q.head_stride;
  const T* k_head = k + batch * p.k.batch_stride + kv_head * p.k.head_stride;
  const T* v_head = v + batch * p.v.batch_stride + kv_head * p.v.head_stride;

  int visible = p.seqlen_k;
  if (p.causal) visible = min(p.seqlen_k, max(0, row + 1 + p.seqlen_k - p.seqlen_q));
  double highest = -INFINITY;
  for (int key = threadIdx.x; key < visible; key += 256) {
    double dot = 0;
    for (int i = 0; i < p.head_dim; ++i) {
      dot += double(float(q_row[i])) * double(float(k_head[key * p.k.row_stride + i]));
    }
    weights[key] = dot * p.scale;
    highest = (dot != dot || highest != highest) ? NAN : max(highest, weights[key]);
  }
  double largest = 0;
  for (int key = threadIdx.x; key < visible; key += 256) largest = max(largest, fabs(weights[key]));
  largest = block_reduce(largest, true);
  highest = block_reduce(highest, true);
  double sum = 0;
  for (int key = threadIdx.x; key < visible; key += 256) {
    weights[key] = exp(weights[key] - highest);
    sum += weights[key];
  }
  sum = block_reduce(sum, false);
  const int64_t out_row = (int64_t(batch) * p.heads + head) * p.seqlen_q + row;
  if (threadIdx.x == 0) {
    lse[out_row] = visible == 0 ? -INFINITY : highest + log(sum);
    largest_score[out_row] = largest;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.head_dim_v; i += 256) {
    double full = 0, low = 0;
    for (int key = 0; key < visible; ++key) {
      const double value = double(float(v_head[key * p.v.row_stride + i]));
      full += weights[key] * value;
      low += rounded<T>(weights[key]) * value;
    }
    exact[out_row * p.head_dim_v + i] = visible == 0 ? 0 : full / sum;
    naive[out_row * p.head_dim_v + i] = visible == 0 ? 0 : rounded<T>(low / sum);
  }
}

}  // namespace fa3::testing
