// SPDX-License-Identifier: Apache-2.0
// The gradients of attention the plain way on the GPU, in double precision: the oracle of the
// backward's tests, sharing no code with the kernels. Beside the exact gradients it computes what a
// naive backward of the same element type would give (O, P and dS rounded), the yardstick for the
// error we allow. Tensors are (batch, row, head, column) or (row, head, column) without gaps;
// matrices of scores are (sequence, head, query, key).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/dropout/dropout.h"
#include "core/mask/mask_rule.h"

namespace fa3::testing {

// A sequence's rows: the first in the tensor, and how many there are.
struct SequenceSpan {
  int64_t q_begin, k_begin;
  int seqlen_q, seqlen_k;
};

struct BackwardShape {
  int sequences, heads, kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;  // longest lengths
  MaskRuleOf<int> mask;
  double scale, softcap;
  bool packed_q;
  int64_t q_rows;             // of the packed tensor
  const SequenceSpan* spans;  // of each sequence
  Dropout dropout;

  __host__ __device__ int group() const { return heads / kv_heads; }
  __device__ int64_t q_row(int b, int row, int h) const {
    return (spans[b].q_begin + row) * heads + h;
  }
  __device__ int64_t k_row(int b, int row, int h) const {
    return (spans[b].k_begin + row) * kv_heads + h;
  }
  __device__ int64_t score(int b, int h, int row, int key) const {
    return ((int64_t{b} * heads + h) * seqlen_q + row) * seqlen_k + key;
  }
  // What a weight is multiplied by.
  __device__ double kept(int b, int h, int row, int key) const {
    if (!dropout.on()) return 1;
    const DropoutHead head = dropout.head(dropout.call_key(), b, h);
    return DropoutRow(dropout, head, row).keeps(key) ? dropout.scale() : 0;
  }
  // The place of an LSE: (sequence, head, row) or (head, row).
  __device__ int64_t number(int b, int h, int row) const {
    return packed_q ? h * q_rows + spans[b].q_begin + row
                    : (int64_t{b} * heads + h) * seqlen_q + row;
  }
  __device__ bool visible(int b, int row, int key) const {
    const int diagonal = row + spans[b].seqlen_k - spans[b].seqlen_q;
    return (mask.right == mask.kUnbounded || key <= diagonal + mask.right) &&
           (mask.left == mask.kUnbounded || key >= diagonal - mask.left);
  }
};

template <typename T>
struct BackwardTensors {
  const T *q, *k, *v, *d_o;
  const float* d_lse;  // like lse, or null
  const float* sink;   // a head, or null
  T* o;                // of the forward, rounded
  float* lse;
  double *p, *ds, *naive_ds;  // matrices of scores
  double *dq, *dk, *dv;       // exact
  double *naive_dq, *naive_dk, *naive_dv;
  double *d_sink, *naive_d_sink, *d_sink_terms;  // a head; of terms the sum of sizes
};

template <typename T>
__device__ double as_double(T x) {
  return double(float(x));
}

template <typename T>
__device__ double round_to(double x) {
  return double(float(T(float(x))));
}

inline __device__ double block_sum(double x) {
  __shared__ double partial[128];
  partial[threadIdx.x] = x;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < 128; ++i) sum += partial[i];
  __syncthreads();
  return sum;
}

inline __device__ double block_max(double x) {
  __shared__ double partial[128];
  partial[threadIdx.x] = x;
  __syncthreads();
  double best = partial[0];
  for (int i = 1; i < 128; ++i) best = partial[i] > best ? partial[i] : best;
  __syncthreads();
  return best;
}

// One query row: forward, then dS. Grid (seqlen_q, heads, sequences), 128 threads.
template <typename T>
__global__ void reference_rows(BackwardShape s, BackwardTensors<T> t) {
  const int row = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  if (row >= s.spans[b].seqlen_q) return;
  const int kv_head = h / s.group(), seqlen_k = s.spans[b].seqlen_k;
  const T* const q = t.q + s.q_row(b, row, h) * s.head_dim;
  const T* const d_o = t.d_o + s.q_row(b, row, h) * s.head_dim_v;
  double* const p = t.p + s.score(b, h, row, 0);
  double* const slope = t.ds + s.score(b, h, row, 0);
  double highest = t.sink ? double(t.sink[h]) : -INFINITY;
  for (int key = threadIdx.x; key < seqlen_k; key += 128) {
    double dot = 0;
    const T* const k = t.k + s.k_row(b, key, kv_head) * s.head_dim;
    for (int i = 0; i < s.head_dim; ++i) dot += as_double(q[i]) * as_double(k[i]);
    double score = dot * s.scale;
    slope[key] = 1;
    if (s.softcap > 0) {
      const double x = tanh(score / s.softcap);
      score = s.softcap * x;
      slope[key] = 1 - x * x;
    }
    p[key] = s.visible(b, row, key) ? score : -INFINITY;
    highest = fmax(highest, p[key]);
  }
  highest = block_max(highest);
  double sum = 0;
  for (int key = threadIdx.x; key < seqlen_k; key += 128) {
    p[key] = highest == -INFINITY ? 0 : exp(p[key] - highest);
    sum += p[key];
  }
  sum = block_sum(sum);
  const double of_sink = t.sink ? exp(double(t.sink[h]) - highest) : 0;
  sum += of_sink;
  for (int key = threadIdx.x; key < seqlen_k; key += 128) p[key] = sum == 0 ? 0 : p[key] / sum;
  __syncthreads();
  const int64_t number = s.number(b, h, row);
  if (threadIdx.x == 0) t.lse[number] = sum == 0 ? -INFINITY : float(highest + log(sum));
  double delta = 0, naive_delta = 0;
  for (int i = threadIdx.x; i < s.head_dim_v; i += 128) {
    double o = 0;
    for (int key = 0; key < seqlen_k; ++key) {
      if (p[key] == 0) continue;
      o += p[key] * s.kept(b, h, row, key) *
           as_double(t.v[s.k_row(b, key, kv_head) * s.head_dim_v + i]);
    }
    t.o[s.q_row(b, row, h) * s.head_dim_v + i] = T(float(o));
    delta += o * as_double(d_o[i]);
    naive_delta += round_to<T>(o) * as_double(d_o[i]);
  }
  const double d_lse = t.d_lse && sum != 0 ? double(t.d_lse[number]) : 0;
  delta = block_sum(delta) - d_lse;
  naive_delta = block_sum(naive_delta) - d_lse;
  if (t.sink && threadIdx.x == 0) {
    atomicAdd(t.d_sink + h, -of_sink / sum * delta);
    atomicAdd(t.naive_d_sink + h, -of_sink / sum * naive_delta);
    atomicAdd(t.d_sink_terms + h, fabs(of_sink / sum * delta));
  }
  for (int key = threadIdx.x; key < seqlen_k; key += 128) {
    double dp = 0;
    const T* const v = t.v + s.k_row(b, key, kv_head) * s.head_dim_v;
    for (int i = 0; i < s.head_dim_v; ++i) dp += as_double(v[i]) * as_double(d_o[i]);
    dp *= s.kept(b, h, row, key);
    const double slope_of_key = slope[key];
    t.ds[s.score(b, h, row, key)] = p[key] * (dp - delta) * slope_of_key;
    t.naive_ds[s.score(b, h, row, key)] = round_to<T>(p[key] * (dp - naive_delta) * slope_of_key);
  }
}

// dQ of one row. Grid (seqlen_q, heads, sequences), 128 threads.
template <typename T>
__global__ void reference_dq(BackwardShape s, BackwardTensors<T> t) {
  const int row = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
  if (row >= s.spans[b].seqlen_q) return;
  for (int i = threadIdx.x; i < s.head_dim; i += 128) {
    double exact = 0, naive = 0;
    for (int key = 0; key < s.spans[b].seqlen_k; ++key) {
      const double k = as_double(t.k[s.k_row(b, key, h / s.group()) * s.head_dim + i]);
      exact += t.ds[s.score(b, h, row, key)] * k;
      naive += t.naive_ds[s.score(b, h, row, key)] * k;
    }
    t.dq[s.q_row(b, row, h) * s.head_dim + i] = exact * s.scale;
    t.naive_dq[s.q_row(b, row, h) * s.head_dim + i] = round_to<T>(naive * s.scale);
  }
}

// dK and dV of one key. Grid (seqlen_k, kv_heads, sequences), 128 threads.
template <typename T>
__global__ void reference_dkv(BackwardShape s, BackwardTensors<T> t) {
  const int key = blockIdx.x, kv_head = blockIdx.y, b = blockIdx.z;
  if (key >= s.spans[b].seqlen_k) return;
  for (int i = threadIdx.x; i < max(s.head_dim, s.head_dim_v); i += 128) {
    double dk = 0, naive_dk = 0, dv = 0, naive_dv = 0;
    for (int h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h) {
      for (int row = 0; row < s.spans[b].seqlen_q; ++row) {
        const int64_t at = s.score(b, h, row, key);
        if (i < s.head_dim) {
          const double q = as_double(t.q[s.q_row(b, row, h) * s.head_dim + i]);
          dk += t.ds[at] * q;
          naive_dk += t.naive_ds[at] * q;
        }
        if (i < s.head_dim_v) {
          const double d_o = as_double(t.d_o[s.q_row(b, row, h) * s.head_dim_v + i]);
          const double kept = s.kept(b, h, row, key);
          dv += t.p[at] * kept * d_o;
          naive_dv += round_to<T>(t.p[at]) * kept * d_o;
        }
      }
    }
    const int64_t row = s.k_row(b, key, kv_head);
    if (i < s.head_dim) {
      t.dk[row * s.head_dim + i] = dk * s.scale;
      t.naive_dk[row * s.head_dim + i] = round_to<T>(naive_dk * s.scale);
    }
    if (i < s.head_dim_v) {
      t.dv[row * s.head_dim_v + i] = dv;
      t.naive_dv[row * s.head_dim_v + i] = round_to<T>(naive_dv);
    }
  }
}

}  // namespace fa3::testing
