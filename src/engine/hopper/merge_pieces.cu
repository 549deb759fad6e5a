// SPDX-License-Identifier: Apache-2.0
// A kernel for the rows of all cut tiles (merge_row.cuh): the launch decides how many warps share a row. It
// starts while the forward ends, and the next forward while it runs.
#include "engine/hopper/merge_pieces.h"

#include "engine/hopper/launch.h"
#include "engine/hopper/merge_row.cuh"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kWarps = 8;  // of a thread block
constexpr int kThreads = kWarps * kWarpSize;

// Warps share a row, and each asks for so many pieces at a time.
template <Element E, int Warps, int Ahead>
__global__ void __launch_bounds__(kThreads)
    merge_pieces_kernel(const __grid_constant__ PieceMerge m) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ MergedSum of_warp[kWarps][kWarpSize];
  constexpr int kRows = kWarps / Warps;  // of a thread block
  const int number = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
  ptx::griddepcontrol_wait();
  const CutTile cut = m.cuts[blockIdx.x];
  const int row = int(blockIdx.y) * kRows + number / Warps;
  if (cut.num_pieces == 0) return;
  for (int first = 0; first < m.pieces.columns; first += kMergedColumns) {
    const int column = first + lane * kLaneColumns;
    MergedSum sum[1];
    add_pieces<1, Ahead, Warps>(sum, m.pieces, cut, row, 0, number % Warps, column);
    if constexpr (Warps > 1) {
      of_warp[number][lane] = sum[0];
      __syncthreads();
      if (number % Warps == 0) {
        for (int w = 1; w < Warps; ++w) sum[0].raise(of_warp[number + w][lane].ref);
        for (int w = 1; w < Warps; ++w) {
          MergedSum more = of_warp[number + w][lane];
          more.raise(sum[0].ref);
          sum[0].join(more);
        }
      }
      __syncthreads();
    }
    if (number % Warps == 0 && row < m.pieces.rows) {
      finish_row<E, true>(sum[0], m.output, cut, row, column);
    }
  }
}

struct Team {
  void (*kernel)(PieceMerge);
  int warps;  // of a row
};

template <Element E, int Warps, int Ahead>
constexpr Team team() {
  return {&merge_pieces_kernel<E, Warps, Ahead>, Warps};
}

// Measured (docs/performance-decoding.md): most is won where all pieces of a row are asked for at once, by
// so few warps, of so few registers, that all rows find room.
template <Element E>
Team team_for(int64_t most_pieces) {
  if (most_pieces <= 3) return team<E, 1, 2>();  // of even runs, two
  if (most_pieces <= 8) return team<E, 1, 4>();
  if (most_pieces <= 12) return team<E, 2, 6>();
  if (most_pieces <= 20) return team<E, 4, 5>();
  return team<E, kWarps, 4>();
}

}  // namespace

cudaError_t merge_pieces(const PieceMerge& merge, cudaStream_t stream) {
  const Team team = merge.element == Element::kFp16 ? team_for<Element::kFp16>(merge.most_pieces)
                                                    : team_for<Element::kBf16>(merge.most_pieces);
  const int64_t rows = kWarps / team.warps;  // of a thread block
  const dim3 grid(unsigned(merge.num_cuts), unsigned(ceil_div(merge.pieces.rows, rows)));
  PieceMerge params = merge;
  return launch(reinterpret_cast<const void*>(team.kernel), grid, kThreads, 0, &params,
                {.chained = true}, stream);
}

}  // namespace fa3::hopper
