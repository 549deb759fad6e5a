// SPDX-License-Identifier: Apache-2.0
// The forward kernel, as a table of contents: set up barriers, split into one producer and the
// consumers, give each the registers it needs. One thread block a multiprocessor, alive until no
// tiles are left. Read next: piece/smem_plan.cuh, load_tma.cuh, mainloop.cuh.
#pragma once

#include "engine/hopper/followed_rows.cuh"
#include "engine/hopper/gather_keys.cuh"
#include "engine/hopper/load_tma.cuh"
#include "engine/hopper/mainloop.cuh"
#include "engine/hopper/ptx/apart.cuh"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/widen_keys.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name into
// the host stub, and forgets to declare that name.
using _ZN3fa36hopper13ForwardConfigE = fa3::hopper::ForwardConfig;

namespace fa3::hopper {

template <ForwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.blocks)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  SmemPlan<C>& smem = *reinterpret_cast<SmemPlan<C>*>(raw_smem);
  const SmemAddresses<C> at{uniform(ptx::cvta_to_shared(raw_smem))};

  // Uniform over the warp, and known to be: the branch below must not diverge.
  const int warp = uniform(threadIdx.x / kWarpSize);
  const int warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(params.q_map);
    if constexpr (!C.decodes() || C.widens()) {
      ptx::prefetch_tensormap(params.k_map);
      ptx::prefetch_tensormap(params.v_map);
    }
    constexpr int kConsumers = C.consumer_warps() * ptx::kArrivalsOfWarp;
    constexpr int kHelpers = kHelperWarps * ptx::kArrivalsOfWarp;
    constexpr int kLoads = C.loads_by_warp() ? ptx::kArrivalsOfWarp : 1;
    for (int w = 0; w < C.consumers(); ++w) at.q_ring(w).init(kConsumers / C.consumers());
    if constexpr (C.widens()) {
      at.loaded_ring().init(kHelpers);
      at.kv_ring().init(kConsumers, kHelpers);
      at.item_ring().init(kConsumers + kHelpers, kLoads);
    } else if (gathers<C>(params)) {
      at.kv_ring().init(kConsumers, 1 + kHelperWarps * ptx::kLanes);
      at.item_ring().init(kConsumers + kHelpers, kLoads);
    } else {
      at.kv_ring().init(kConsumers);
      at.item_ring().init(kConsumers, kLoads);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (C.is_chained()) ptx::griddepcontrol_wait();

  if (warpgroup == int(Warpgroup::kProducer)) {
    ptx::setmaxnreg_dec<C.producer_registers()>();
    if constexpr (C.loads_by_warp()) {
      if (warp == 0) {
        Producer<C>(params, ptx::apart(smem), at).run();
        // The merge waits for this kernel's end itself. Started earlier, all of it would be on the few
        // multiprocessors that are free first.
        ptx::griddepcontrol_launch_dependents();
      }
    } else {
      if (warp == 0 && ptx::elect_sync()) Producer<C>(params, smem, at).run();
    }
    if constexpr (C.widens()) {
      if (warp > 0) Widener<C>(smem, at, warp - 1).run();
    }
    if constexpr (C.may_gather()) {
      if (warp > 0 && gathers<C>(params)) Gatherer<C>(params, smem, at, warp - 1).run();
    }
  } else {
    if constexpr (C.consumer_registers() < C.launch_registers()) {
      ptx::setmaxnreg_dec<C.consumer_registers()>();
    } else {
      ptx::setmaxnreg_inc<C.consumer_registers()>();
    }
    using Mine = std::conditional_t<C.follows(), FollowingConsumer<C>, Consumer<C>>;
    Mine(params, smem, at, warpgroup - int(Warpgroup::kFirstConsumer)).run();
    if constexpr (C.decodes()) {
      merge_cut_tiles<C>(params, smem.cut.tiles, int(thread_in_block()) - kWarpgroupSize);
    }
  }
}

}  // namespace fa3::hopper
