// SPDX-License-Identifier: Apache-2.0
// A kernel for the rows of all cut tiles (merge_row.cuh): the launch decides how many warps share a row.
#include "engine/hopper/merge_pieces.h"

#include "engine/hopper/launch.h"
#include "engine/hopper/merge_row.cuh"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kWarps = 8;  // of a thread block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kAhead = 4;      // pieces that a warp asks for at a time
constexpr int kFewPieces = 8;  // of a row that one warp adds up as soon as eight that meet

// Warps: that share a row.
template <Element E, int Warps>
__global__ void __launch_bounds__(kThreads)
    merge_pieces_kernel(const __grid_constant__ PieceMerge m) {
  __shared__ MergedSum of_warp[kWarps][kWarpSize];
  constexpr int kRows = kWarps / Warps;  // of a thread block
  const int number = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
  ptx::griddepcontrol_wait();
  const CutTile cut = m.cuts[blockIdx.x];
  const int row = int(blockIdx.y) * kRows + number / Warps;
  if (Warps == 1 && row >= m.pieces.rows) return;
  if (cut.num_pieces == 0) return;
  for (int first = 0; first < m.pieces.columns; first += kMergedColumns) {
    const int column = first + lane * kLaneColumns;
    MergedSum sum[1];
    add_pieces<1, kAhead, Warps>(sum, m.pieces, cut, row, 0, number % Warps, column);
    if constexpr (Warps > 1) {
      of_warp[number][lane] = sum[0];
      __syncthreads();
      if (number == 0) {
        for (int w = 1; w < Warps; ++w) sum[0].raise(of_warp[w][lane].ref);
        for (int w = 1; w < Warps; ++w) {
          MergedSum more = of_warp[w][lane];
          more.raise(sum[0].ref);
          sum[0].join(more);
        }
      }
      __syncthreads();
    }
    if (number % Warps == 0) finish_row<E, true>(sum[0], m.output, cut, row, column);
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
  const dim3 grid(unsigned(merge.num_cuts), unsigned(ceil_div(merge.pieces.rows, rows)));
  PieceMerge params = merge;
  return launch(reinterpret_cast<const void*>(kernel), grid, kThreads, 0, &params,
                {.chained = true}, stream);
}

}  // namespace fa3::hopper
