// SPDX-License-Identifier: Apache-2.0
// Combines the rows of all split tiles (combine_row.cuh) in a kernel of its own. The launch decides
// how many warps share a row. It starts while the forward ends, and the next forward starts while
// it runs (PDL).
#include "core/ceil_div.h"
#include "engine/hopper/scheduler/side_kernels.h"

#include "engine/cuda/host/launch.h"
#include "engine/hopper/combine/gated_row.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kWarps = 8;  // of a CTA
constexpr int kThreads = kWarps * kWarpSize;

// `Warps` warps share a row, and each loads `Ahead` splits at a time.
template <Element E, int Warps, int Ahead, bool Gated>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ CombineParams m) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ CombinedSum of_warp[kWarps][kWarpSize];
  constexpr int kRows = kWarps / Warps;  // of a CTA
  const int number = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
  ptx::griddepcontrol_wait();
  const CombineTile combine = m.combines[blockIdx.x];
  const int row = int(blockIdx.y) * kRows + number / Warps;
  if (combine.num_splits == 0) return;
  for (int first = 0; first < m.partials.columns; first += kCombinedColumns) {
    const int column = first + lane * kLaneColumns;
    CombinedSum sum[1];
    add_splits<1, Ahead, Warps>(sum, m.partials, combine, row, 0, number % Warps, column);
    if constexpr (Warps > 1) {
      of_warp[number][lane] = sum[0];
      __syncthreads();
      if (number % Warps == 0) {
        for (int w = 1; w < Warps; ++w) sum[0].raise(of_warp[number + w][lane].ref);
        for (int w = 1; w < Warps; ++w) {
          CombinedSum more = of_warp[number + w][lane];
          more.raise(sum[0].ref);
          sum[0].join(more);
        }
      }
      __syncthreads();
    }
    if (number % Warps == 0 && row < m.partials.rows) {
      if constexpr (Gated) {
        finish_row<E, true>(sum[0], m.output, combine, row, column, GatedRow{m.gate});
      } else {
        finish_row<E, true>(sum[0], m.output, combine, row, column);
      }
    }
  }
}

struct Team {
  void (*kernel)(CombineParams);
  int warps;  // of a row
};

template <Element E, bool Gated, int Warps, int Ahead>
constexpr Team team() {
  return {&combine_kernel<E, Warps, Ahead, Gated>, Warps};
}

// Measured (docs/lab/decoding.md): it is fastest to load all splits of a row at once, by
// few warps and registers, so that all rows are resident.
template <Element E, bool Gated>
Team team_for(int64_t most_splits) {
  if (most_splits <= 3) return team<E, Gated, 1, 2>();  // two in even ranges
  if (most_splits <= 8) return team<E, Gated, 1, 4>();
  if (most_splits <= 12) return team<E, Gated, 2, 6>();
  if (most_splits <= 20) return team<E, Gated, 4, 5>();
  return team<E, Gated, kWarps, 4>();
}
template <Element E>
Team team_for(const CombineParams& m) {
  return m.gate.kind == Gate::kNone ? team_for<E, false>(m.most_splits)
                                    : team_for<E, true>(m.most_splits);
}

}  // namespace

cudaError_t combine_splits(const CombineParams& merge, cudaStream_t stream) {
  const Team team = merge.element == Element::kFp16 ? team_for<Element::kFp16>(merge)
                                                    : team_for<Element::kBf16>(merge);
  const int64_t rows = kWarps / team.warps;  // of a CTA
  const dim3 grid(unsigned(merge.num_combines), unsigned(ceil_div(merge.partials.rows, rows)));
  CombineParams params = merge;
  return launch(reinterpret_cast<const void*>(team.kernel), grid, kThreads, 0, &params,
                {.pdl = true}, stream);
}

}  // namespace fa3::hopper
