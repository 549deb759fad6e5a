// SPDX-License-Identifier: Apache-2.0
// The forward kernel, as a table of contents: set up barriers, split into one producer and the
// consumers, give each the registers it needs. One CTA an SM, alive until no
// tiles are left. Read next: forward/smem_plan.cuh, load_tma.cuh, mainloop.cuh.
#pragma once

#include "engine/hopper/forward/dequantize_keys.cuh"
#include "engine/hopper/forward/load_cp_async.cuh"
#include "engine/hopper/forward/load_tma.cuh"
#include "engine/hopper/forward/mainloop.cuh"
#include "engine/hopper/forward/max_tracking.cuh"
#include "engine/hopper/ptx/apart.cuh"
#include "engine/hopper/ptx/grid.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36hopper13ForwardConfigE = fa3::hopper::ForwardConfig;

namespace fa3::hopper {

template <ForwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.ctas_per_sm)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  SmemPlan<C>& smem = *reinterpret_cast<SmemPlan<C>*>(raw_smem);
  const SmemAddresses<C> at{uniform(ptx::cvta_to_shared(raw_smem))};

  // Uniform over the warp, and known to be: the branch below must not diverge.
  const int warp = uniform(threadIdx.x / kWarpSize);
  const int warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(params.q_map);
    if constexpr (!C.always_splits() || C.dequantizes()) {
      ptx::prefetch_tensormap(params.k_map);
      ptx::prefetch_tensormap(params.v_map);
    }
    constexpr int kConsumers = C.consumer_warps() * ptx::kArrivalsOfWarp;
    constexpr int kHelpers = kHelperWarps * ptx::kArrivalsOfWarp;
    constexpr int kLoads = C.loads_by_warp() ? ptx::kArrivalsOfWarp : 1;
    for (int w = 0; w < C.consumers(); ++w) at.q_pipeline(w).init(kConsumers / C.consumers());
    if constexpr (C.dequantizes()) {
      at.loaded_pipeline().init(kHelpers);
      at.kv_pipeline().init(kConsumers, kHelpers);
      at.work_tile_pipeline().init(kConsumers + kHelpers, kLoads);
    } else if (uses_cp_async<C>(params)) {
      at.kv_pipeline().init(kConsumers, 1 + kHelperWarps * ptx::kLanes);
      at.work_tile_pipeline().init(kConsumers + kHelpers, kLoads);
    } else {
      at.kv_pipeline().init(kConsumers);
      at.work_tile_pipeline().init(kConsumers, kLoads);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (C.uses_pdl()) ptx::griddepcontrol_wait();

  if (warpgroup == int(Warpgroup::kProducer)) {
    ptx::setmaxnreg_dec<C.producer_registers()>();
    if constexpr (C.loads_by_warp()) {
      if (warp == 0) {
        Producer<C>(params, ptx::apart(smem), at).run();
        // The combine waits for this kernel's end itself. Started earlier, all of it would be on
        // the few SMs that are free first.
        ptx::griddepcontrol_launch_dependents();
      }
    } else {
      if (warp == 0 && ptx::elect_sync()) Producer<C>(params, smem, at).run();
    }
    if constexpr (C.dequantizes()) {
      if (warp > 0) Dequantizer<C>(smem, at, warp - 1).run();
    }
    if constexpr (C.may_use_cp_async()) {
      if (warp > 0 && uses_cp_async<C>(params)) CpAsyncLoader<C>(params, smem, at, warp - 1).run();
    }
  } else {
    if constexpr (C.consumer_registers() < C.launch_registers()) {
      ptx::setmaxnreg_dec<C.consumer_registers()>();
    } else {
      ptx::setmaxnreg_inc<C.consumer_registers()>();
    }
    using Mine = std::conditional_t<C.tracks_max(), MaxTrackingConsumer<C>, Consumer<C>>;
    Mine(params, smem, at, warpgroup - int(Warpgroup::kFirstConsumer)).run();
    if constexpr (C.always_splits()) {
      combine_tiles_of_cta<C>(params, smem.split.tiles, int(thread_in_block()) - kWarpgroupSize);
    }
  }
}

}  // namespace fa3::hopper
