// SPDX-License-Identifier: Apache-2.0
// Attention to a latent cache: up to 64 query rows a CTA against keys whose first 512 channels are
// the values too. CTAs of 64 rows: wide/. Of fewer (narrow/), A and B of the products are swapped:
// S^T = K Q^T and O^T += V^T P^T by wgmma, keys and channels as the 64 rows of A, query rows as 16
// or 32 columns of B. So a block of keys lies in shared memory once and serves both products,
// K-major and MN-major, and few query rows waste no product.
//
// These are memory-bound: a block of 64 keys has 72 KB, which an SM's share of the memory brings in
// 4,070 clocks at 4.2 TB/s. S^T, softmax and O^T of a block take 2,330 clocks one after the other
// for 16 rows, 2,870 for 32 (docs/lab/mla.md). So one consumer warpgroup is enough, and has nobody
// to share references, P or barriers with; its O^T takes 64 (128) registers a thread. The other
// warpgroup loads, 16 bytes a copy: pages of any size and selected rows are the same to it. It
// fills a ring of slabs, 64 keys of 64 channels (latent_shape.h says how many): a block being
// computed holds 9, others are on their way.
//
// Rows of 656 bytes lie in shared memory as they are, and become fp16 in registers on their way to
// the products, which takes two consumers (latent_byte_rows.cuh).
//
// With 64 rows the products of a block take longer than its rows from memory, and two consumers
// share a block's work (latent_wide_rows.cuh). Rows of bytes become fp16 in the loader.
//
// Read first: latent_params.h. Next: narrow/latent_loader.cuh, narrow/latent_rows.cuh;
// wide/latent_wide_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_segments.cuh"
#include "engine/hopper/latent/narrow/latent_byte_loader.cuh"
#include "engine/hopper/latent/narrow/latent_byte_rows.cuh"
#include "engine/hopper/latent/narrow/latent_loader.cuh"
#include "engine/hopper/latent/narrow/latent_rows.cuh"
#include "engine/hopper/latent/wide/latent_wide_byte_loader.cuh"
#include "engine/hopper/latent/wide/latent_wide_loader.cuh"
#include "engine/hopper/latent/wide/latent_wide_rows.cuh"

namespace fa3::hopper {

template <LatentShape C, bool IsGroup128 = C.is_group128, bool IsWide = C.is_wide()>
struct LoaderOf {
  using Type = LatentLoader<C>;
};
template <LatentShape C>
struct LoaderOf<C, true, false> {
  using Type = LatentByteLoader<C>;
};
template <LatentShape C>
struct LoaderOf<C, false, true> {
  using Type = LatentWideLoader<C>;
};
template <LatentShape C>
struct LoaderOf<C, true, true> {
  using Type = LatentWideByteLoader<C>;
};

template <LatentShape C, bool IsGroup128 = C.is_group128, bool IsWide = C.is_wide()>
struct RowsOf {
  using Type = LatentRows<C>;
};
template <LatentShape C>
struct RowsOf<C, true, false> {
  using Type = LatentByteRows<C>;
};
template <LatentShape C, bool IsGroup128>
struct RowsOf<C, IsGroup128, true> {
  using Type = LatentWideRows<C>;
};

template <LatentShape C>
struct LatentSmem {
  alignas(kSmemAlignment) unsigned char stages[C.stages_bytes()];
  typename RowsOf<C>::Type::Smem rows;
  typename LoaderOf<C>::Type::Smem loader;
  LatentRingBarriers<C> barriers;
  typename LatentSegments<C.threads(), C.stream_tiles()>::Smem segments;
};

// With three warpgroups setmaxnreg moves registers from the loader to consumers. Those of a thread
// of each may sum to 504 at most, else setmaxnreg waits for ever.
template <LatentShape C>
struct LatentRegisters {
  static constexpr int kLoader = C.converts() ? 88 : C.is_wide() ? 72 : 40;
  static constexpr int kConsumer = (504 - kLoader) / 2;
};

template <LatentShape C>
__global__ void __launch_bounds__(C.threads(), 1)
    latent_kernel(const __grid_constant__ LatentParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<LatentSmem<C>*>(raw_smem);
  const Pipeline<C.stages()> pipeline{ptx::cvta_to_shared(&smem.barriers)};
  if (threadIdx.x == 0) {
    constexpr int kArrivals = kWarpsPerWarpgroup * ptx::kArrivalsOfWarp;
    // What copies bring is announced by each thread, what was converted by each warp.
    pipeline.init(C.readers() * kArrivals, C.converts() ? kArrivals : kWarpgroupSize);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::griddepcontrol_wait();  // the kernel before may still be running
  ptx::griddepcontrol_launch_dependents();
  LatentSegments<C.threads(), C.stream_tiles()> segments(params, smem.segments);
  const int rank = int(blockIdx.x) % params.team_ctas;
  const uint32_t stages = ptx::cvta_to_shared(smem.stages);
  const int warpgroup = int(uniform(threadIdx.x / kWarpgroupSize));
  const int thread = int(threadIdx.x) % kWarpgroupSize;
  LatentSegment segment;
  LatentTile tile;
  constexpr bool kMovesRegisters = C.threads() == 3 * kWarpgroupSize;
  if (warpgroup == 0) {
    if constexpr (kMovesRegisters) ptx::setmaxnreg_dec<LatentRegisters<C>::kLoader>();
    typename LoaderOf<C>::Type loader(params, pipeline, stages, smem.loader, thread);
    bool is_first = true;  // consumers load that tile's queries at once
    while (segments.next(segment, tile)) {
      const int first_row = tile.first_row + rank * C.rows;
      if (first_row >= tile.rows) continue;
      if (C.is_wide() && !is_first) prefetch_queries(params, tile, first_row, thread);
      is_first = false;
      loader.load(tile, segment);
    }
    return;
  }
  if constexpr (kMovesRegisters) ptx::setmaxnreg_inc<LatentRegisters<C>::kConsumer>();
  typename RowsOf<C>::Type rows(params, smem.rows, pipeline, stages,
                                int(threadIdx.x) - kWarpgroupSize);
  while (segments.next(segment, tile)) {
    const bool opens_tile = segment.part == 0 && segment.parts.count > 0;
    if (params.splits == 0 && rank == 0 && thread == 0 && opens_tile) {
      params.tile_parts[segment.tile] = segment.parts;
    }
    const int first_row = tile.first_row + rank * C.rows;
    if (first_row >= tile.rows) continue;
    rows.start(tile, first_row);
    rows.attend(segment);
    if (segment.parts.count == 1) {
      rows.finish();
    } else {
      const int slot = segment.parts.slot_of(segment.part);
      rows.store_part(int64_t{slot} * params.rows_of_team() + rank * C.rows);
    }
  }
}

}  // namespace fa3::hopper
