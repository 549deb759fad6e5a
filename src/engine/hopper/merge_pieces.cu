// SPDX-License-Identifier: Apache-2.0
// One thread block for each row of each cut tile: weights from the pieces' log-sum-exps, then the
// weighted sum of their rows, each warp taking its share of the pieces. The order of the sums depends
// on the number of pieces alone.
#include "engine/hopper/merge_pieces.h"

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/softmax.cuh"
#include "engine/hopper/launch.h"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kLaneColumns = 4;
constexpr int kColumns = kLaneColumns * kWarpSize;  // of a pass
constexpr unsigned kAllLanes = 0xffffffff;

// In every thread the same.
template <class Combine>
__device__ float over_block(float value, const Combine& combine) {
  __shared__ float of_warp[kWarps];
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warp[0];
  for (int w = 1; w < kWarps; ++w) value = combine(value, of_warp[w]);
  return value;
}

__device__ float lse_of(const PieceMerge& m, const CutTile& cut, int piece, int row) {
  return m.pieces.lse[m.pieces.row(cut.slot(piece), row)];
}

// The sum of the pieces' weights, and what they are counted from (base 2). A NaN reaches both.
struct Total {
  float ref;
  float sum;
};

__device__ Total total_of(const PieceMerge& m, const CutTile& cut, int row, float sink) {
  float max = sink;
  for (int i = int(threadIdx.x); i < cut.num_pieces; i += kThreads) {
    max = fmaxf(max, lse_of(m, cut, i, row));
  }
  max = over_block(max, [](float a, float b) { return fmaxf(a, b); });
  const float ref = max == -kInfinity ? 0.0f : max;
  float sum = 0;
  for (int i = int(threadIdx.x); i < cut.num_pieces; i += kThreads) {
    sum += ex2(lse_of(m, cut, i, row) - ref);
  }
  sum = over_block(sum, [](float a, float b) { return a + b; });
  return {ref, sum + ex2(sink - ref)};
}

// This warp's pieces of four columns.
__device__ void add_pieces(const PieceMerge& m, const CutTile& cut, int row, int column, float ref,
                           float (&sum)[kLaneColumns]) {
#pragma unroll 4
  for (int i = int(threadIdx.x) / kWarpSize; i < cut.num_pieces; i += kWarps) {
    const float weight = ex2(lse_of(m, cut, i, row) - ref);
    const float4 o = *reinterpret_cast<const float4*>(
        m.pieces.o + m.pieces.row(cut.slot(i), row) * m.pieces.columns + column);
    // A piece without keys counts for nothing, whatever its O holds.
    if (weight == 0) continue;
    sum[0] += weight * o.x, sum[1] += weight * o.y, sum[2] += weight * o.z, sum[3] += weight * o.w;
  }
}

template <Element E>
__global__ void __launch_bounds__(kThreads)
    merge_pieces_kernel(const __grid_constant__ PieceMerge m) {
  __shared__ float4 of_warp[kWarps][kWarpSize];
  ptx::griddepcontrol_wait();
  const CutTile cut = m.cuts[blockIdx.x];
  const int row = int(blockIdx.y), packed_row = cut.first_row + row;
  const HeadPack pack = m.output.pack;
  const int query = pack.query(packed_row);
  if (cut.num_pieces == 0 || query >= cut.queries.count) return;

  const int head = pack.head(cut.queries.pack, packed_row);
  const bool has_sink = m.output.sink && query < cut.queries.used;
  const Total total = total_of(m, cut, row, has_sink ? m.output.sink[head] * kLog2E : -kInfinity);
  const float inverse = total.sum == 0 ? 0.0f : 1 / total.sum;
  const int lane = int(threadIdx.x) % kWarpSize, warp = int(threadIdx.x) / kWarpSize;
  for (int first = 0; first < m.pieces.columns; first += kColumns) {
    const int column = first + lane * kLaneColumns;
    float sum[kLaneColumns] = {};
    if (column < m.pieces.columns) add_pieces(m, cut, row, column, total.ref, sum);
    of_warp[warp][lane] = {sum[0], sum[1], sum[2], sum[3]};
    __syncthreads();
    if (warp == 0 && column < m.pieces.columns) {
      float4 all = of_warp[0][lane];
      for (int w = 1; w < kWarps; ++w) {
        const float4 more = of_warp[w][lane];
        all = {all.x + more.x, all.y + more.y, all.z + more.z, all.w + more.w};
      }
      auto* const to = reinterpret_cast<uint2*>(
          m.output.o.at(cut.queries.batch, head, cut.queries.begin + query) + column);
      *to = {pack_pair<E>(all.x * inverse, all.y * inverse),
             pack_pair<E>(all.z * inverse, all.w * inverse)};
    }
    __syncthreads();
  }
  const RowFloats& lse = m.output.lse;
  if (threadIdx.x == 0 && lse.data) {
    lse.data[lse.strides.offset(cut.queries.batch, head, cut.queries.begin + query)] =
        total.sum == 0 ? -kInfinity : (total.ref + log2f(total.sum)) * kLn2;
  }
}

}  // namespace

cudaError_t merge_pieces(const PieceMerge& merge, cudaStream_t stream) {
  const auto kernel = merge.element == Element::kFp16 ? &merge_pieces_kernel<Element::kFp16>
                                                      : &merge_pieces_kernel<Element::kBf16>;
  cudaLaunchAttribute follows{};
  follows.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  follows.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(merge.num_cuts), unsigned(merge.pieces.rows));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &follows;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, merge);
}

}  // namespace fa3::hopper
