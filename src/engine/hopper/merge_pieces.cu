// SPDX-License-Identifier: Apache-2.0
// Some warps for each row of each cut tile: weights from the pieces' log-sum-exps, then the weighted
// sum of their rows, each warp taking its share of the pieces. The order of the sums depends on the
// number of pieces and on how many warps share a row, which the launch decides.
#include "engine/hopper/merge_pieces.h"

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/softmax.cuh"
#include "engine/hopper/launch.h"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kWarps = 8;  // of a thread block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kLaneColumns = 4;
constexpr int kColumns = kLaneColumns * kWarpSize;  // of a pass
constexpr int kAhead = 4;      // pieces whose rows a warp asks for before it knows their weights
constexpr int kFewPieces = 8;  // of a row that one warp adds up as soon as eight that meet
constexpr unsigned kAllLanes = 0xffffffff;

// A row of a cut tile, and the pieces of it that this warp adds up: every Warps-th.
struct MergedRow {
  const PieceMerge& m;
  const CutTile& cut;
  int row;  // of the tile
  int warp, lane;

  __device__ float lse(int piece) const { return m.pieces.lse[m.pieces.row(cut.slot(piece), row)]; }
  __device__ float4 output(int piece, int column) const {
    const int64_t at = m.pieces.row(cut.slot(piece), row) * m.pieces.columns + column;
    return *reinterpret_cast<const float4*>(m.pieces.o + at);
  }
};

// What weights are counted from (base 2), and their sum. By one warp, of all pieces; a NaN reaches both.
struct Total {
  float ref;
  float sum;
};

__device__ Total total_of(const MergedRow& r, float sink) {
  float max = sink;
  for (int i = r.lane; i < r.cut.num_pieces; i += kWarpSize) max = fmaxf(max, r.lse(i));
  for (int d = 1; d < kWarpSize; d *= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, d));
  const float ref = max == -kInfinity ? 0.0f : max;
  float sum = 0;
  for (int i = r.lane; i < r.cut.num_pieces; i += kWarpSize) sum += ex2(r.lse(i) - ref);
  for (int d = 1; d < kWarpSize; d *= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
  return {ref, sum + ex2(sink - ref)};
}

// A piece without keys counts for nothing, whatever its O holds.
__device__ void add(float4& sum, float weight, const float4& o) {
  if (weight == 0) return;
  sum.x += weight * o.x, sum.y += weight * o.y, sum.z += weight * o.z, sum.w += weight * o.w;
}

// This warp's pieces of four columns; the first are on their way while the total is found.
template <int Warps>
__device__ float4 weighted_sum(const MergedRow& r, int column, float sink, Total* total) {
  float4 ahead[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int piece = r.warp + j * Warps;
    if (piece < r.cut.num_pieces && column < r.m.pieces.columns) ahead[j] = r.output(piece, column);
  }
  *total = total_of(r, sink);
  float4 sum{};
  if (column >= r.m.pieces.columns) return sum;
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int piece = r.warp + j * Warps;
    if (piece < r.cut.num_pieces) add(sum, ex2(r.lse(piece) - total->ref), ahead[j]);
  }
#pragma unroll 4
  for (int i = r.warp + kAhead * Warps; i < r.cut.num_pieces; i += Warps) {
    add(sum, ex2(r.lse(i) - total->ref), r.output(i, column));
  }
  return sum;
}

// Four columns, or as many as the tensor has left.
template <class Number, class Vector>
__device__ void store_columns(Number* to, const Vector& four, int columns) {
  static_assert(sizeof(Vector) == kLaneColumns * sizeof(Number));
  if (columns >= kLaneColumns) {
    *reinterpret_cast<Vector*>(to) = four;
    return;
  }
  for (int i = 0; i < columns; ++i) to[i] = reinterpret_cast<const Number*>(&four)[i];
}

// Warps: that share a row.
template <Element E, int Warps>
__global__ void __launch_bounds__(kThreads)
    merge_pieces_kernel(const __grid_constant__ PieceMerge m) {
  __shared__ float4 of_warp[kWarps][kWarpSize];
  constexpr int kRows = kWarps / Warps;  // of a thread block
  const int number = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
  ptx::griddepcontrol_wait();
  const CutTile cut = m.cuts[blockIdx.x];
  const int row = int(blockIdx.y) * kRows + number / Warps, packed_row = cut.first_row + row;
  const HeadPack pack = m.output.pack;
  const int query = pack.query(packed_row);
  const bool exists = cut.num_pieces > 0 && row < m.pieces.rows && query < cut.queries.count;
  if (Warps == 1 ? !exists : cut.num_pieces == 0) return;

  const int head = pack.head(cut.queries.pack, packed_row);
  const bool has_sink = exists && m.output.sink && query < cut.queries.used;
  const float sink = has_sink ? m.output.sink[head] * kLog2E : -kInfinity;
  const MergedRow r{m, cut, exists ? row : 0, number % Warps, lane};
  Total total{};
  for (int first = 0; first < m.pieces.columns; first += kColumns) {
    const int column = first + lane * kLaneColumns;
    float4 all = weighted_sum<Warps>(r, column, sink, &total);
    if constexpr (Warps > 1) {
      of_warp[number][lane] = all;
      __syncthreads();
      for (int w = 1; w < Warps; ++w) {
        const float4 more = of_warp[(number + w) % kWarps][lane];
        all = {all.x + more.x, all.y + more.y, all.z + more.z, all.w + more.w};
      }
      __syncthreads();
    }
    if (!exists || r.warp != 0 || column >= m.pieces.columns) continue;
    const float inverse = total.sum == 0 ? 0.0f : 1 / total.sum;
    all = {all.x * inverse, all.y * inverse, all.z * inverse, all.w * inverse};
    const RowTensor& o = m.output.o;
    const int64_t at =
        o.strides.offset(cut.queries.batch, head, cut.queries.begin + query) + column;
    const int columns = o.columns - column;  // left of the tensor
    if (m.output.o_is_float32) {
      store_columns(static_cast<float*>(o.data) + at, all, columns);
    } else {
      const uint2 packed = {pack_pair<E>(all.x, all.y), pack_pair<E>(all.z, all.w)};
      store_columns(static_cast<uint16_t*>(o.data) + at, packed, columns);
    }
  }
  const RowFloats& lse = m.output.lse;
  if (exists && r.warp == 0 && lane == 0 && lse.data) {
    lse.data[lse.strides.offset(cut.queries.batch, head, cut.queries.begin + query)] =
        total.sum == 0 ? -kInfinity : (total.ref + log2f(total.sum)) * kLn2;
  }
}

template <Element E>
auto kernel_of(bool many_pieces) {
  return many_pieces ? &merge_pieces_kernel<E, kWarps> : &merge_pieces_kernel<E, 1>;
}

}  // namespace

cudaError_t merge_pieces(const PieceMerge& merge, cudaStream_t stream) {
  const bool many = merge.most_pieces > kFewPieces;
  const auto kernel = merge.element == Element::kFp16 ? kernel_of<Element::kFp16>(many)
                                                      : kernel_of<Element::kBf16>(many);
  const int64_t rows = many ? 1 : kWarps;  // of a thread block
  cudaLaunchAttribute follows{};
  follows.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  follows.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(merge.num_cuts), unsigned(ceil_div(merge.pieces.rows, rows)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &follows;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, merge);
}

}  // namespace fa3::hopper
