// SPDX-License-Identifier: Apache-2.0
// The main kernel of the backward, as a table of contents: a CTA for each key block. preprocess.cuh
// runs before it, postprocess.cuh after it. Next: backward_smem.cuh, query_gradient.cuh,
// key_gradients.cuh.
#pragma once

#include "engine/hopper/backward/dq_semaphore.cuh"
#include "engine/hopper/backward/key_block_pair.cuh"
#include "engine/hopper/backward/key_gradients.cuh"
#include "engine/hopper/backward/query_gradient.cuh"
#include "engine/hopper/backward/query_loader.cuh"
#include "engine/hopper/backward/split_key_gradients.cuh"
#include "engine/hopper/pipeline/roles.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36hopper14BackwardConfigE = fa3::hopper::BackwardConfig;

namespace fa3::hopper {

template <BackwardConfig C>
__device__ __forceinline__ void help(const BackwardParams& params, BackwardAddresses<C> at,
                                     const KeyBlockWork<C>& work, HelperWarp warp) {
  if (!ptx::elect_sync()) return;
  if (warp == HelperWarp::kLoads) QueryLoader<C>(params, at, work).run();
  if constexpr (kLoadsTile) {
    if (warp == HelperWarp::kLoadsCaptured) CapturedTileLoader<C>(params, at, work).run();
  }
  if constexpr (C.pairs()) {
    if (warp == HelperWarp::kSendsDs) KeyBlockPair<C>(at).send_all(work.num_steps());
  }
  if (!adds_in_order<C>(params)) return;
  if (warp == HelperWarp::kWaitsForSemaphore) DqSemaphore<C>(params, at, work).wait_for_all();
  if (warp == HelperWarp::kReleasesSemaphore) DqSemaphore<C>(params, at, work).release_all();
}

template <BackwardConfig C>
using BackwardParamsOf = std::conditional_t<C.wide(), WideBackwardParams, BackwardParams>;

template <BackwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    backward_kernel(const __grid_constant__ BackwardParamsOf<C> params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  const BackwardAddresses<C> at{uniform(ptx::cvta_to_shared(raw_smem))};
  const KeyBlockWork<C> work(params, int(blockIdx.x),
                             reinterpret_cast<BackwardSmem<C>*>(raw_smem)->work);

  // Equal in all lanes, and known to be: the branch below must not diverge.
  const int warp = uniform(threadIdx.x / kWarpSize);
  const int warpgroup = warp / kWarpsPerWarpgroup;

  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&params.k_map, &params.q_map, &params.v_map, &params.d_o_map}) {
      ptx::prefetch_tensormap(*map);
    }
    constexpr int kQueryReleases = C.splits_dkv() ? 2 * kWarpsPerWarpgroup : 1;
    constexpr int kKeyWarps = C.key_warpgroups() * kWarpsPerWarpgroup;
    at.k_pipeline().init(C.persistent() ? kWarpsPerWarpgroup + C.key_warpgroups() : 1);
    ptx::fence_mbarrier_init();
    if (work.exists()) QueryLoader<C>(params, at, work).load_k();
    at.v_pipeline().init(1);
    at.q_pipeline().init(kQueryReleases);
    at.d_o_pipeline().init(C.d_o_goes_with_ds() ? kKeyWarps : kQueryReleases);
    at.ds_pipeline().init(C.ctas() * kWarpsPerWarpgroup, kKeyWarps);
    at.p_pipeline().init(C.ctas() * kWarpsPerWarpgroup, kWarpsPerWarpgroup);
    at.semaphore_pipeline().init(1);
    at.added_pipeline().init(1, kWarpsPerWarpgroup);
    if constexpr (kLoadsTile) at.captured_pipeline().init(1);
    if constexpr (C.pairs()) KeyBlockPair<C>(at).init();
    ptx::fence_mbarrier_init();
  }
  if constexpr (C.pairs()) {
    KeyBlockPair<C>::meet_first();
  } else {
    __syncthreads();
  }
  ptx::griddepcontrol_launch_dependents();
  if (!work.exists()) return;

  if (warpgroup == int(BackwardWarpgroup::kQuery)) {
    ptx::setmaxnreg_dec<C.query_registers()>();
    QueryGradient<C>(params, at, work).run();
    if constexpr (C.pairs()) KeyBlockPair<C>::meet_last();
  } else if (C.shape.helpers && warpgroup == int(BackwardWarpgroup::kHelpers)) {
    if constexpr (C.shape.helpers) ptx::setmaxnreg_dec<C.helper_registers()>();
    help<C>(params, at, work, HelperWarp(warp % kWarpsPerWarpgroup));
  } else {
    ptx::setmaxnreg_inc<C.key_registers()>();
    const int key_warpgroup = warpgroup - int(BackwardWarpgroup::kFirstKey);
    if constexpr (!C.splits_dkv()) {
      KeyGradients<C>(params, at, work, key_warpgroup).run();
    } else if (key_warpgroup == int(KeyGradient::kDv)) {
      SplitKeyGradients<C, KeyGradient::kDv>(params, at, work).run();
    } else {
      SplitKeyGradients<C, KeyGradient::kDk>(params, at, work).run();
    }
  }
}

}  // namespace fa3::hopper
