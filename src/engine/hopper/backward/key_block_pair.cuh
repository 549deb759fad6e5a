// SPDX-License-Identifier: Apache-2.0
// A pair: two CTAs of a cluster whose key blocks are neighbours and go through the same query
// blocks. Each computes its own dS, sends it to the other, and sums half of dQ's columns over the
// keys of both:
//
//   CTA 0   dQ[:, first half]  += dS0 K0[:, first half]  + dS1 K1[:, first half]
//   CTA 1   dQ[:, second half] += dS0 K0[:, second half] + dS1 K1[:, second half]
//
// At 256 columns a dS is an eighth of the bytes of the dQ that it makes (of 64 queries, in
// float32), so what goes to the other CTA costs little beside what no longer goes to memory. At 128
// columns, with twice as many keys, it is half. Next: query_gradient.cuh.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/ptx/cluster.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class KeyBlockPair {
 public:
  __device__ __forceinline__ explicit KeyBlockPair(BackwardAddresses<C> at)
      : at_(at), other_(ptx::cluster_rank() ^ 1) {}

  // By one thread, before the CTAs meet.
  __device__ __forceinline__ void init() const {
    at_.pair_pipeline().init(1);
    for (uint32_t stage = 0; stage < C.shape.ds_stages; ++stage) expect(stage);
  }

  // All threads, at the start: nobody sends to barriers that are not there yet. What the CTA's own
  // threads have stored, __syncthreads() shows them.
  static __device__ __forceinline__ void meet_first() {
    __syncthreads();
    meet();
  }

  // dQ's threads, at the end: until then the other CTA reads dS here. Others have ended, or will.
  static __device__ __forceinline__ void meet_last() {
    __syncwarp();
    meet();
  }

  // A helper's thread. The stage there is free where this one was: whoever wrote this dS has waited
  // for dQ's warps of both CTAs (release()).
  __device__ __forceinline__ void send_all(int num_steps) const {
    PipelineState<C.shape.ds_stages> ds;
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      at_.ds_pipeline().wait_full(ds);
      const uint32_t stage = ds.stage();
      ptx::cp_async_bulk_to_cluster(there(at_.pair_ds(stage)), at_.ds(stage), C.ds_tile().bytes(),
                                    there(at_.pair_pipeline().full(stage)));
      ds.advance();
    }
  }

  // dQ's warpgroup, for the other's dS.
  __device__ __forceinline__ void wait_full(PipelineState<C.shape.ds_stages> ds) const {
    at_.pair_pipeline().wait_full(ds);
    if (thread_in_block() == 0) expect(ds.stage());
    __syncwarp();
  }

  // One lane of each of its warps, which has read both dS. What the other CTA has sent has left it
  // then. `sends`: it will send to this stage again.
  __device__ __forceinline__ void release(uint32_t stage, bool sends) const {
    const Pipeline<C.shape.ds_stages> pipeline =
        C.p_lies_in_ds() ? at_.p_pipeline() : at_.ds_pipeline();
    const uint32_t empty = pipeline.empty(stage);
    ptx::mbarrier_arrive(empty);
    if (sends) ptx::mbarrier_arrive_in_cluster(there(empty));
  }

 private:
  // Neither has to wait for additions to dQ.
  static __device__ __forceinline__ void meet() {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
  __device__ __forceinline__ void expect(uint32_t stage) const {
    ptx::mbarrier_arrive_expect_tx(at_.pair_pipeline().full(stage), C.ds_tile().bytes());
  }
  __device__ __forceinline__ uint32_t there(uint32_t address) const {
    return ptx::in_block_of_cluster(address, other_);
  }

  const BackwardAddresses<C> at_;
  const unsigned other_;
};

}  // namespace fa3::hopper
