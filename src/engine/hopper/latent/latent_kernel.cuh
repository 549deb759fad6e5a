// SPDX-License-Identifier: Apache-2.0
// Decoding from a latent cache: up to 32 query rows against keys whose first 512 channels are the
// values too. A and B of the products are swapped: S^T = K Q^T and O^T += V^T P^T by wgmma, keys
// and channels as the 64 rows of A, query rows as 16 or 32 columns of B. So a block of keys lies in
// shared memory once and serves both products, K-major and MN-major, and few query rows waste no
// product.
//
// A memory-bound kernel: a block of 64 keys has 72 KB, which an SM's share of the memory brings in
// 4,070 clocks at 4.2 TB/s. S^T, softmax and O^T of a block take 2,330 clocks one after the other
// for 16 rows, 2,870 for 32 (docs/lab/mla.md). So one consumer warpgroup is enough, and has nobody
// to share references, P or barriers with; its O^T takes 64 (128) registers a thread. The other
// warpgroup loads, 16 bytes a copy: pages of any size and selected rows are the same to it. It
// fills a ring of slabs, 64 keys of 64 channels (latent_shape.h says how many): a block being
// computed holds 9, others are on their way.
//
// Read first: latent_params.h. Next: latent_loader.cuh, latent_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_byte_loader.cuh"
#include "engine/hopper/latent/latent_loader.cuh"
#include "engine/hopper/latent/latent_rows.cuh"
#include "engine/hopper/latent/latent_segments.cuh"

namespace fa3::hopper {

template <LatentShape C, bool IsGroup128 = C.is_group128>
struct LoaderOf {
  using Type = LatentLoader<C>;
};
template <LatentShape C>
struct LoaderOf<C, true> {
  using Type = LatentByteLoader<C>;
};

template <LatentShape C>
struct LatentSmem {
  alignas(kSmemAlignment) unsigned char stages[C.stages()][C.stage_bytes()];
  typename LatentRows<C>::Smem rows;
  alignas(16) unsigned char scales[C.scale_bytes() + 16];
  typename LoaderOf<C>::Type::Smem loader;
  PipelineBarriers<C.stages()> barriers;
  typename LatentSegments<C.threads()>::Smem segments;
};

// With two loader warpgroups setmaxnreg moves registers from them to the consumer. Those of a
// thread of each of the three warpgroups may sum to 504 at most, else setmaxnreg waits for ever.
struct LatentRegisters {
  static constexpr int kAll = 504, kLoader = 128, kConsumer = kAll - 2 * kLoader;
};

template <LatentShape C>
__global__ void __launch_bounds__(C.threads(), 1)
    latent_kernel(const __grid_constant__ LatentParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<LatentSmem<C>*>(raw_smem);
  const Pipeline<C.stages()> pipeline{ptx::cvta_to_shared(&smem.barriers)};
  if (threadIdx.x == 0) {
    constexpr int kWarpArrivals = kWarpsPerWarpgroup * ptx::kArrivalsOfWarp;
    pipeline.init(kWarpArrivals,
                  C.is_group128 ? C.loader_warpgroups() * kWarpArrivals : kWarpgroupSize);
    ptx::fence_mbarrier_init();
  }
  ptx::griddepcontrol_wait();  // the kernel before may still be running
  ptx::griddepcontrol_launch_dependents();
  LatentSegments<C.threads()> segments(params, smem.segments);  // ends with a barrier of all
  const int rank = int(blockIdx.x) % params.team_ctas;
  const uint32_t stages = ptx::cvta_to_shared(smem.stages);
  const int warpgroup = int(uniform(threadIdx.x / kWarpgroupSize));
  const int thread = int(threadIdx.x) % kWarpgroupSize;
  const uint32_t scales = ptx::cvta_to_shared(smem.scales);
  LatentSegment segment;
  constexpr bool kTwoLoaders = C.loader_warpgroups() == 2;
  if (warpgroup / C.loader_warpgroups() == 0) {
    if constexpr (kTwoLoaders) ptx::setmaxnreg_dec<LatentRegisters::kLoader>();
    typename LoaderOf<C>::Type loader(params, pipeline, stages, smem.loader, scales,
                                      kTwoLoaders ? int(threadIdx.x) : thread);
    while (segments.next(segment)) {
      const LatentTile tile = latent_tile(params, segment.tile);
      if (tile.first_row + rank * C.rows < tile.rows) loader.load(tile, segment);
    }
    loader.finish();
    return;
  }
  if constexpr (kTwoLoaders) ptx::setmaxnreg_inc<LatentRegisters::kConsumer>();
  LatentRows<C> rows(params, smem.rows, pipeline, stages, scales, thread);
  while (segments.next(segment)) {
    const LatentTile tile = latent_tile(params, segment.tile);
    if (rank == 0 && thread == 0 && segment.part == 0 && segment.parts.count > 0) {
      params.tile_parts[segment.tile] = segment.parts;
    }
    const int first_row = tile.first_row + rank * C.rows;
    if (first_row >= tile.rows) continue;
    rows.start(tile, first_row);
    for (int block = segment.first; block < segment.end; ++block) rows.attend(block);
    if (segment.parts.count == 1) {
      rows.finish();
    } else {
      const int slot = segment.parts.slot_of(segment.part);
      rows.store_part(int64_t{slot} * params.rows_of_team() + rank * C.rows);
    }
  }
}

}  // namespace fa3::hopper
