// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_oracle.h"

#include <algorithm>
#include <vector>

#include "cuda/device_array.cuh"

namespace fa3::test {
namespace {

using testing::DeviceArray;

constexpr int kThreads = 256, kBlocksPerSm = 6;

// Sums and maxima of a block; every thread gets them.
class Block {
 public:
  __device__ explicit Block(double* numbers) : numbers_(numbers) {}

  __device__ int rank() const { return int(threadIdx.x); }
  __device__ int size() const { return kThreads; }
  __device__ void sync() const { __syncthreads(); }
  __device__ double sum(double x) const {
    return combine(x, [](double a, double b) { return a + b; });
  }
  __device__ double most(double x) const {
    return combine(x, [](double a, double b) { return a < b ? b : a; });
  }

 private:
  template <class Function>
  __device__ double combine(double x, const Function& function) const {
    numbers_[rank()] = x;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (rank() < half) numbers_[rank()] = function(numbers_[rank()], numbers_[rank() + half]);
    }
    __syncthreads();
    const double result = numbers_[0];
    __syncthreads();
    return result;
  }

  double* const numbers_;
};

// Each block takes rows of all heads in turn.
__global__ void attend_rows(ForwardCall call, const HeadOperands* heads, int num_heads,
                            int most_queries, int most_keys, double* weights, float* stored) {
  __shared__ double numbers[kThreads];
  const Block block(numbers);
  const RowMemory memory{weights + int64_t{blockIdx.x} * most_keys,
                         stored + int64_t{blockIdx.x} * most_keys};
  const int64_t rows = int64_t{num_heads} * most_queries;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const HeadOperands& at = heads[row / most_queries];
    const int query = int(row % most_queries);
    if (query < at.queries) attend_row(block, call, at, query, memory);
  }
}

}  // namespace

Truth forward_truth_on_gpu(const Case& c, const Inputs& inputs) {
  const OracleOperands operands = oracle_operands(c, inputs);
  const auto rows = size_t(operands.rows), o = size_t(operands.o_size);
  const DeviceArray<double> q(operands.q), kt(operands.kt), v(operands.v), norms(operands.v_norms);
  const DeviceArray<float> sink(operands.sink);
  const DeviceArray<HeadOperands> heads(operands.heads);
  const DeviceArray<double> out(o), base_o(o), lse(rows), terms(rows), largest(rows);
  const int blocks = testing::device_sms() * kBlocksPerSm;
  const DeviceArray<double> weights(size_t(blocks) * size_t(operands.most_keys));
  const DeviceArray<float> stored(weights.count);
  ForwardCall call = oracle_call(c);
  call.q = q.data;
  call.kt = kt.data;
  call.v = v.data;
  call.v_norms = norms.data;
  call.sink = c.sink ? sink.data : nullptr;
  call.o = out.data;
  call.lse = lse.data;
  call.terms = terms.data;
  call.largest = largest.data;
  call.base_o = base_o.data;
  if (operands.rows > 0) {
    attend_rows<<<blocks, kThreads>>>(call, heads.data, int(operands.heads.size()),
                                      operands.most_queries, operands.most_keys, weights.data,
                                      stored.data);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  return oracle_truth(c, operands,
                      {out.fetch(), lse.fetch(), terms.fetch(), largest.fetch(), base_o.fetch()});
}

}  // namespace fa3::test
