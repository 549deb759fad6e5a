// SPDX-License-Identifier: Apache-2.0
// Gradients of attention to the rows of a latent cache that each token's indices name. A CTA has up
// to 64 heads of one token and goes through its keys once, in blocks of 64: S = Q K^T and dP = dO
// V^T, P and dS, dQ += dS K, and for the rows of the cache dS^T Q + P^T dO, added to sums in
// float32, or in deterministic calls in integers.
//
// Q and dO of 64 rows take 136 KB of shared memory, a block of keys 72 and P and dS 16: there is
// room for one block. The loader brings the next block while the keys' gradients are multiplied and
// added, which takes longest: 144 KB a block and CTA are 8,900 clocks if an H200's L2 takes
// 3.84 TB/s of them (an estimate), all products 5,500. Two warpgroups share dQ, half of its
// channels each: 160 registers a thread.
//
// Read first: latent_backward_params.h. Next: latent_key_loader.cuh, latent_gradients.cuh.
#pragma once

#include "engine/hopper/latent/backward/cache_sums.cuh"
#include "engine/hopper/latent/backward/latent_gradients.cuh"
#include "engine/hopper/latent/backward/latent_key_loader.cuh"

namespace fa3::hopper {

inline constexpr int kLatentBackwardThreads = 3 * kWarpgroupSize;

template <int HeadDim, Element E, class Sums, int Part>
__device__ __forceinline__ void compute_gradients(const LatentBackwardParams& params,
                                                  LatentBackwardSmem<HeadDim>& smem) {
  ptx::setmaxnreg_inc<LatentBackwardRegisters::kGradients[Part]>();
  LatentGradients<HeadDim, E, Sums, Part> gradients(params, smem);
  const GradientRows rows(params);
  SelectedBlocks blocks(params, rows.b, rows.token);
  while (blocks.next()) gradients.attend(blocks);
  gradients.finish();
}

template <int HeadDim, Element E, class Sums>
__global__ void __launch_bounds__(kLatentBackwardThreads, 1)
    latent_backward_kernel(const __grid_constant__ LatentBackwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<LatentBackwardSmem<HeadDim>*>(raw_smem);
  if (threadIdx.x == 0) {
    const Pipeline<1> pipeline{ptx::cvta_to_shared(&smem.barriers)};
    pipeline.init(2 * kWarpsPerWarpgroup * ptx::kArrivalsOfWarp, kWarpgroupSize);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  // Each role finds out for itself what all know: what lives across would not fit the loader's
  // registers.
  const int warpgroup = int(uniform(threadIdx.x / kWarpgroupSize));
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<LatentBackwardRegisters::kLoader>();
    const GradientRows rows(params);
    SelectedBlocks blocks(params, rows.b, rows.token);
    LatentKeyLoader<HeadDim>(params, smem, int(threadIdx.x)).load(blocks);
  } else if (warpgroup == 1) {
    compute_gradients<HeadDim, E, Sums, 0>(params, smem);
  } else {
    compute_gradients<HeadDim, E, Sums, 1>(params, smem);
  }
}

}  // namespace fa3::hopper
