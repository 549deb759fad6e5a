// SPDX-License-Identifier: Apache-2.0
// One warp for each head of each new row: its place is looked up, then the row is copied, turned on
// the way if it is to be. The arrays may hold anything: a row that has no place in the cache is not
// written, a position beyond the tables is their last.
#include "engine/cuda/kernels/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

#include "engine/cuda/host/device.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/tile/row_owner.h"

namespace fa3::cuda {
namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int64_t kMostCtas = 1 << 20;  // beyond, warps take several rows

// Null: the cache has no such place.
template <class T>
__device__ T* place_of(const AppendProblem& p, const Operand& cache, int64_t b, int64_t row,
                       int64_t head) {
  const int64_t entry = p.places.entry_of(b);
  if (row < 0 || row >= p.room || !p.places.has_entry(entry)) return nullptr;
  if (!p.places.paged()) return cache.at<T>(entry, row, head);
  const int64_t page =
      p.places.page_table[entry * p.places.table_stride + row / p.places.page_size];
  if (!p.places.has_page(page)) return nullptr;
  return cache.at<T>(page, row % p.places.page_size, head);
}

// Either type of 8 bits: kernels are for both, and a launch says which.
struct Float8 {
  __nv_fp8_storage_t bits;
};

// How the numbers of a row leave: in float32, divided by this and rounded once.
struct Rounding {
  float divisor;
  bool is_e5m2;  // those of 8 bits; else e4m3
};

template <class T>
__device__ float to_float(T x, bool) {
  return float(x);
}
__device__ float to_float(Float8 x, bool is_e5m2) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, is_e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

// Finite numbers end at the largest; e4m3 has a NaN but no infinity.
__device__ Float8 narrowed(float x, bool is_e5m2) {
  if (!is_e5m2) {
    return {__nv_cvt_float_to_fp8(isfinite(x) ? x : nanf(""), __NV_SATFINITE, __NV_E4M3)};
  }
  if (isinf(x)) return {__nv_fp8_storage_t(x < 0 ? 0xfc : 0x7c)};
  return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)};
}

template <class To>
__device__ To rounded(float x, const Rounding& how) {
  if constexpr (std::is_same_v<To, Float8>) {
    return narrowed(x / how.divisor, how.is_e5m2);
  } else {
    return To(x);
  }
}

template <class T, class To>
__device__ void copy(const T* from, int64_t begin, int64_t end, const Rounding& how, To* to) {
  for (int64_t i = begin + threadIdx.x % kWarpSize; i < end; i += kWarpSize) {
    if constexpr (std::is_same_v<T, To>) {
      to[i] = from[i];
    } else {
      to[i] = rounded<To>(to_float(from[i], how.is_e5m2), how);
    }
  }
}

// A lane reads both columns of a pair before it writes them: `to` may be `from`.
template <class Table, class T, class To>
__device__ void turn_by(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim,
                        const Rounding& how, To* to) {
  const int lane = int(threadIdx.x) % kWarpSize;
  const int64_t last = rotary.positions - 1;
  const int64_t at = position < 0 ? 0 : position < last ? position : last;
  const auto* cos = static_cast<const Table*>(rotary.cos) + at * rotary.cos_stride;
  const auto* sin = static_cast<const Table*>(rotary.sin) + at * rotary.sin_stride;
  const int64_t step = rotary.interleaved ? 2 : 1;
  const int64_t distance = rotary.interleaved ? 1 : rotary.pairs;
  for (int64_t i = lane; i < rotary.pairs; i += kWarpSize) {
    const auto wide = [&](auto number) { return to_float(number, how.is_e5m2); };
    const float x = wide(from[i * step]), y = wide(from[i * step + distance]);
    const float c = wide(cos[i]), s = wide(sin[i]);
    to[i * step] = rounded<To>(x * c - y * s, how);
    to[i * step + distance] = rounded<To>(x * s + y * c, how);
  }
  if (static_cast<const void*>(to) == from) return;
  copy(from, 2 * rotary.pairs, dim, how, to);
}

template <class T, class To>
__device__ void turn(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim,
                     const Rounding& how, To* to) {
  if (rotary.dtype == DType::float32) {
    turn_by<float>(rotary, position, from, dim, how, to);
  } else {
    turn_by<T>(rotary, position, from, dim, how, to);
  }
}

template <class T, class Cached>
__device__ void append_row(const AppendProblem& p, int64_t number, int64_t head) {
  const OwnedRow row = owned_row(p.lengths_new, p.batch, number);
  if (!row.used) return;
  const int64_t entry = p.lengths_new.packed() ? 0 : row.b;
  const int64_t to = p.seqused[row.b] + row.row;
  const auto by = [&](const Descales<const float>& scales) {
    return Rounding{divisor_of(scales, row.b, head), p.cache_dtype == DType::float8_e5m2};
  };
  if (Cached* v = place_of<Cached>(p, p.v_cache, row.b, to, head)) {
    copy(p.v.at<T>(entry, row.from, head), 0, p.head_dim_v, by(p.v_descale), v);
  }
  if (Cached* k = place_of<Cached>(p, p.k_cache, row.b, to, head)) {
    turn(p.rotary, p.first_position[row.b] + row.row, p.k.at<T>(entry, row.from, head), p.head_dim,
         by(p.k_descale), k);
  }
}

template <class T>
__device__ void turn_query(const AppendProblem& p, int64_t number, int64_t head) {
  const OwnedRow row = owned_row(p.lengths_q, p.batch, number);
  if (!row.used) return;
  const int64_t entry = p.lengths_q.packed() ? 0 : row.b;
  const int64_t position = p.first_position[row.b] + (p.queries_share_position ? 0 : row.row);
  turn(p.rotary, position, p.q.at<T>(entry, row.from, head), p.head_dim,
       {1.0f, p.dtype == DType::float8_e5m2}, p.q_rotated.at<T>(entry, row.from, head));
}

template <class T, class Cached>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize)
    append_kernel(const __grid_constant__ AppendProblem p) {
  const int64_t keys = p.lengths_new.total * p.heads_k;
  const int64_t all = keys + (p.rotates_queries ? p.lengths_q.total * p.heads_q : 0);
  const int64_t step = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t i = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; i < all;
       i += step) {
    if (i < keys) {
      append_row<T, Cached>(p, i / p.heads_k, i % p.heads_k);
    } else {
      turn_query<T>(p, (i - keys) / p.heads_q, (i - keys) % p.heads_q);
    }
  }
}

template <class T>
cudaError_t launch(const AppendProblem& p, cudaStream_t stream) {
  const int64_t warps =
      p.lengths_new.total * p.heads_k + (p.rotates_queries ? p.lengths_q.total * p.heads_q : 0);
  if (warps == 0 || p.batch == 0) return cudaSuccess;
  const int64_t blocks = std::min((warps + kWarpsPerBlock - 1) / kWarpsPerBlock, kMostCtas);
  const auto kernel = p.cache_dtype == p.dtype ? append_kernel<T, T> : append_kernel<T, Float8>;
  kernel<<<dim3(unsigned(blocks)), kWarpsPerBlock * kWarpSize, 0, stream>>>(p);
  return cudaPeekAtLastError();
}

}  // namespace

Status run_append(const AppendProblem& problem, void* stream) {
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    error = problem.dtype == DType::float32   ? launch<float>(problem, on)
            : problem.dtype == DType::float16 ? launch<__half>(problem, on)
            : is_float8(problem.dtype)        ? launch<Float8>(problem, on)
                                              : launch<__nv_bfloat16>(problem, on);
  }
  return finish(error, "append");
}

}  // namespace fa3::cuda
