// SPDX-License-Identifier: Apache-2.0
// The forward kernel, as a table of contents: set up barriers, split into one producer and the
// consumers, give each the registers it needs. A CTA stays alive until no tiles are left. Read
// next: smem_plan.cuh, producer.cuh, consumer.cuh. The source of a kernel includes the scheduler,
// the KV loader and the policies that it is made of, before or behind this file
// (instances/forward_entry.cuh).
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer.cuh"
#include "engine/hopper/forward/producer/producer.cuh"
#include "engine/hopper/ptx/sync.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36hopper6KernelE = fa3::hopper::Kernel;

namespace fa3::hopper {

template <Kernel C>
__global__ void __launch_bounds__(C.threads(), C.shape.ctas_per_sm)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  SmemPlan<C>& smem = *reinterpret_cast<SmemPlan<C>*>(raw_smem);
  const SmemAddresses<C> at{uniform(ptx::cvta_to_shared(raw_smem))};

  using Scheduler = TileScheduler<C>;
  using Issuer = typename Scheduler::Issuer;
  using Kv = KvLoaderOf<C>;
  using Helper = HelperOf<C>;

  // Uniform over the warp, and known to be: the branch below must not diverge.
  const int warp = uniform(threadIdx.x / kWarpSize);
  const int warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(params.q_map);
    if constexpr (Kv::Loads::kUsesTma) {
      ptx::prefetch_tensormap(params.k_map);
      ptx::prefetch_tensormap(params.v_map);
    }
    constexpr int kConsumers = C.consumer_warps() * ptx::kArrivalsOfWarp;
    constexpr int kHelpers = kHelperWarps * ptx::kArrivalsOfWarp;
    constexpr int kLoads = Issuer::kArrivals;
    for (int w = 0; w < C.consumers(); ++w) at.q_pipeline(w).init(kConsumers / C.consumers());
    ScoresOf<C>::init_pipelines(at, kConsumers);
    if (Helper::takes_part(params)) {
      Helper::init_pipelines(at, kConsumers);
      at.work_tile_pipeline().init(kConsumers + kHelpers, kLoads);
    } else {
      at.kv_pipeline().init(kConsumers);
      at.work_tile_pipeline().init(kConsumers, kLoads);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Scheduler::kStartsEarly) ptx::griddepcontrol_wait();

  if (warpgroup == int(Warpgroup::kProducer)) {
    ptx::setmaxnreg_dec<register_budget(C).producer>();
    if (warp == 0 && Issuer::takes_part()) {
      Producer<C, typename Kv::Loads, typename Kv::Scales>(params, Issuer::own(smem), at).run();
      // The combine waits for this kernel's end itself. Started earlier, all of it would be on the
      // few SMs that are free first.
      if constexpr (Scheduler::kStartsEarly) ptx::griddepcontrol_launch_dependents();
    }
    if (warp > 0 && Helper::takes_part(params)) Helper(params, smem, at, warp - 1).run();
  } else {
    if constexpr (register_budget(C).consumer < register_budget(C).launch) {
      ptx::setmaxnreg_dec<register_budget(C).consumer>();
    } else {
      ptx::setmaxnreg_inc<register_budget(C).consumer>();
    }
    consume(Consumer<C>(params, smem, at, warpgroup - int(Warpgroup::kFirstConsumer)));
    Scheduler::combine(params, smem.tiles);
  }
}

template <Kernel C>
requires(!C.is_decode()) struct KernelOf<C> {
  static constexpr int kSmemBytes = smem_bytes<C>();
  static constexpr auto kFunction = &forward_kernel<C>;
};

}  // namespace fa3::hopper
