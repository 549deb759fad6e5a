// SPDX-License-Identifier: Apache-2.0
// Rows of tiles that have several parts: a CTA for 128 to 512 columns of a token's head.
#include "engine/cuda/host/launch.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_finish.cuh"
#include "engine/hopper/latent/latent_kernel.h"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/sync.cuh"

#include <algorithm>

namespace fa3::hopper {
namespace {

constexpr int kOwn = 4;  // columns
constexpr int kWarpColumns = kOwn * cuda::kWarpSize;
constexpr int kWarpsOfRow = int(kLatentValueDim) / kWarpColumns;
constexpr int kMostWarps = 16;
constexpr int kMostAtOnce = 8;

// Sums of P and columns of P V, relative to a reference.
struct CombinedSum {
  float from;
  float sum;
  float4 o{};

  // What a part without keys has stored as O is left out, whatever it is.
  __device__ void add_part(const LatentSum& part, const float4& x) {
    if (part.sum == 0) return;
    const float factor = cuda::ex2(part.ref - from);
    sum += factor * part.sum;
    o = {o.x + factor * x.x, o.y + factor * x.y, o.z + factor * x.z, o.w + factor * x.w};
  }
  __device__ void join(const CombinedSum& other) {
    sum += other.sum;
    o = {o.x + other.o.x, o.y + other.o.y, o.z + other.o.z, o.w + other.o.w};
  }
};

// Where a row of the results belongs; tile -1: no sequence has it.
struct RowPlace {
  ResultRow at;
  int tile = -1;
  int row = 0;  // of the team
};

__device__ RowPlace place_of(const LatentParams& params, int token, int head) {
  const MlaProblem& p = params.problem;
  RowPlace place{{0, token, head}};
  int sequence = 0, row = head;
  if (p.lengths_q.packed()) {
    if (p.batch == 0) return place;
    int end = int(p.batch);  // the last sequence that begins at the token or before
    while (end - sequence > 1) {
      const int middle = (sequence + end) / 2;
      (p.lengths_q.cu_seqlens[middle] <= token ? sequence : end) = middle;
    }
    const Rows rows = p.lengths_q.clamped_rows_of(sequence);
    if (token < rows.begin || token >= rows.begin + rows.used) return place;
    row += int(token - rows.begin) * params.heads;
  } else {
    const int of = token / params.tokens;
    place.at.b = of;
    place.at.row = token - of * params.tokens;
    sequence = p.sparse ? token : of;
    if (!p.sparse) row += int(place.at.row) * params.heads;
  }
  const int tile = row / params.rows_of_team();
  place.tile = sequence * params.tiles_of_sequence + tile;
  place.row = row - tile * params.rows_of_team();
  return place;
}

// Two neighbouring columns.
__device__ void store_pair(const MlaProblem& p, const ResultRow& at, int column, float x, float y) {
  if (p.o.dtype == DType::float32) {
    float* const to = p.o.at<float>(at.b, at.row, at.head) + column;
    to[0] = x, to[1] = y;
    return;
  }
  const uint32_t pair = p.o.dtype == DType::float16 ? cuda::pack_pair<cuda::Element::kFp16>(x, y)
                                                    : cuda::pack_pair<cuda::Element::kBf16>(x, y);
  uint16_t* const to = p.o.at<uint16_t>(at.b, at.row, at.head) + column;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(pair) == 0) {
    *reinterpret_cast<uint32_t*>(to) = pair;
  } else {
    to[0] = uint16_t(pair), to[1] = uint16_t(pair >> 16);
  }
}

// A lane's four numbers from `place` on in a part's row. CTAs of 64 rows store there what a lane of
// a product has of 16 columns: two pairs, eight columns apart.
__device__ void store(const LatentParams& params, const ResultRow& at, int place, const float4& o,
                      float factor) {
  const bool is_wide = params.rows_of_cta == kRowsPerWarpgroup;
  const int of_16 = place % 16, column = is_wide ? place - of_16 + of_16 / 2 : place;
  store_pair(params.problem, at, column, o.x * factor, o.y * factor);
  store_pair(params.problem, at, column + (is_wide ? 8 : 2), o.z * factor, o.w * factor);
}

// AtOnce: parts that a warp loads before it uses one. Absent ones take instructions, too.
template <int AtOnce>
__global__ void __launch_bounds__(kMostWarps* cuda::kWarpSize)
    combine_latent_kernel(const __grid_constant__ LatentParams params) {
  const MlaProblem& p = params.problem;
  // Lengths may come from a kernel before; without them the place is found under the other kernel.
  if (p.lengths_q.packed()) ptx::griddepcontrol_wait();
  const int token = int(blockIdx.x) / params.heads, head = int(blockIdx.x) % params.heads;
  // Warps that have the same columns are neighbours.
  const int warps = int(blockDim.x * gridDim.y) / (cuda::kWarpSize * kWarpsOfRow);
  const int of_cta = int(threadIdx.x) / cuda::kWarpSize, warp = of_cta % warps;
  const int of_row = int(blockIdx.y) * (kWarpsOfRow / int(gridDim.y)) + of_cta / warps;
  const int place_in_row = of_row * kWarpColumns + ptx::lane() * kOwn;
  const RowPlace place = place_of(params, token, head);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (place.tile < 0) {
    store(params, place.at, place_in_row, {}, 0);
    if (threadIdx.x == 0 && blockIdx.y == 0) {
      if (p.lse.data != nullptr) *place.at.of(p.lse) = p.empty_lse;
      if (p.max.data != nullptr) *place.at.of(p.max) = -cuda::kInfinity;
    }
    return;
  }
  const LatentParts parts =
      params.splits == 0 ? params.tile_parts[place.tile] : fixed_parts(params, place.tile);
  if (parts.count == 1) return;  // stored by the kernel before
  const auto row_of = [&](int part) {
    return int64_t{parts.slot_of(part)} * params.rows_of_team() + place.row;
  };
  // Warps take parts in turn; each finds the reference for itself, while its first parts are on
  // their way.
  float4 o[AtOnce];
  LatentSum sums[AtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < AtOnce; ++i) {
      const int part = first + i * warps;
      const bool exists = part < parts.count;
      const int64_t row = exists ? row_of(part) : 0;
      sums[i] = exists ? params.partial_sums[row] : LatentSum{-cuda::kInfinity, 0};
      o[i] = {};
      if (exists) {
        o[i] = __ldcg(reinterpret_cast<const float4*>(params.partial_o + row * kLatentValueDim +
                                                      place_in_row));
      }
    }
  };
  load(warp);
  float ref = -cuda::kInfinity;
  for (int part = ptx::lane(); part < parts.count; part += cuda::kWarpSize) {
    ref = fmaxf(ref, params.partial_sums[row_of(part)].ref);
  }
#pragma unroll
  for (int distance = 1; distance < cuda::kWarpSize; distance *= 2) {
    ref = fmaxf(ref, __shfl_xor_sync(0xffffffff, ref, distance));
  }
  CombinedSum all{cuda::finite_reference(ref), 0};
  for (int first = warp; first < parts.count;) {
#pragma unroll
    for (int i = 0; i < AtOnce; ++i) all.add_part(sums[i], o[i]);
    first += AtOnce * warps;
    if (first < parts.count) load(first);
  }
  __shared__ float4 of_warp[kMostWarps][cuda::kWarpSize];
  __shared__ float sum_of_warp[kMostWarps];
  if (warp > 0) {
    of_warp[of_cta][ptx::lane()] = all.o;
    sum_of_warp[of_cta] = all.sum;
  }
  __syncthreads();
  if (warp > 0) return;
  for (int w = of_cta + 1; w < of_cta + warps; ++w) {
    all.join({0, sum_of_warp[w], of_warp[w][ptx::lane()]});
  }
  const LatentSum sum{ref, all.sum};
  const float factor = output_factor(p, sum, head);
  store(params, place.at, place_in_row, all.o, factor);
  if (threadIdx.x == 0 && blockIdx.y == 0) store_statistics(p, sum, place.at);
}

}  // namespace

cudaError_t combine_latent(const LatentParams& params, cudaStream_t stream) {
  const MlaProblem& p = params.problem;
  LatentParams copy = params;
  // As many as load a tile's parts at once, if tiles are alike.
  const int splits = params.splits;
  const int parts = splits > 0 ? splits : params.teams / std::max(params.tiles, 1) + 2;
  int warps = 1;
  while (warps < kMostWarps && warps * kMostAtOnce < parts) warps *= 2;
  const auto kernel = parts > kMostAtOnce / 2 ? &combine_latent_kernel<kMostAtOnce>
                                              : &combine_latent_kernel<kMostAtOnce / 2>;
  // Four warps a CTA, or more: CTAs of one take longer to begin than to work.
  const int ctas_of_row = std::min(warps, kWarpsOfRow);
  const dim3 grid(unsigned(p.lengths_q.total * p.heads), unsigned(ctas_of_row));
  const int threads = warps * kWarpsOfRow / ctas_of_row * cuda::kWarpSize;
  return cuda::launch(reinterpret_cast<const void*>(kernel), grid, threads, 0, &copy, {.pdl = true},
                      stream);
}

}  // namespace fa3::hopper
