// SPDX-License-Identifier: Apache-2.0
//
// A backward pass reduced to its protocol: one block of 128 keys, some blocks of 64 queries, 64
// columns. Written with the kernels' own building blocks, to try what the model knows of a
// backward: a producer warp, a warp that adds dQ to global memory, two warpgroups that multiply; dS
// and dQ pass through shared memory. Every rule that it keeps can be broken, for
// small_backward_test.cpp.
#pragma once

#include "cuda_words.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::small_backward {

enum class Break {
  kNothing,
  kNoFence,                // dS is read by wgmma without a fence after the store
  kFenceAfterBarrier,      // the barrier completes before the fence
  kNoBarrier,              // nobody waits for the other warpgroup's dS
  kBarrierOfOneWarpgroup,  // each warpgroup waits for itself
  kOneDsStage,             // dS is written over while the other warpgroup still multiplies it
  kVectorUnawaited,        // LSE is read before its barrier
  kReleasedEarly,          // Q is released while dK is multiplied from it
  kDqReadInFlight,         // dQ leaves the accumulators before its product is over
  kDqWrittenInFlight,      // dQ is cleared while its product works on it
  kStagedBeforeAsked,      // dQ is staged, and then waits for the last one to have left
  kStagedUnfenced,         // dQ is added by TMA without a fence after the store
  kAddedUnasked,           // the writer does not wait for dQ
  kNoWaitRead,             // the writer releases dQ's buffer while TMA reads it
  kLeftInFlight,           // the block ends while dK is read
  kStagedOverK,            // dK is staged over K while the other warpgroup reads it
  kTooManyRegisters,       // 216 + 216 + 80 of the 504 that three warpgroups get
};

inline constexpr int kSteps = 5, kQueryStages = 2, kDsStages = 2;
inline constexpr int kQueries = 64, kKeys = 128, kColumns = 64;
inline constexpr int kMathWarpgroups = 2, kWarps = 12;
inline constexpr int kMmaDepth = tile::kMmaBytes / 2;  // elements of 16 bits

// Where everything lies.
struct Smem {
  static constexpr tile::TileLayout kKv{kKeys, kColumns}, kQuery{kQueries, kColumns},
      kDs{kQueries, kKeys};
  static constexpr int kVectorBytes = kQueries * 4;
  static constexpr int kDqBytes = kQueries * kColumns / kMathWarpgroups * 4;
  static constexpr int kGradientBytes = kKv.bytes() / kMathWarpgroups;  // dK or dV of a warpgroup

  static constexpr uint32_t kBase = machine::kSmemBase;
  static constexpr uint32_t k() { return kBase; }
  static constexpr uint32_t v() { return k() + kKv.bytes(); }
  static constexpr uint32_t q(int stage) { return v() + kKv.bytes() + stage * kQuery.bytes(); }
  static constexpr uint32_t d_o(int stage) { return q(kQueryStages) + stage * kQuery.bytes(); }
  static constexpr uint32_t ds(int stage) { return d_o(kQueryStages) + stage * kDs.bytes(); }
  static constexpr uint32_t dq(int warpgroup) { return ds(kDsStages) + warpgroup * kDqBytes; }
  static constexpr uint32_t lse(int stage) { return dq(kMathWarpgroups) + stage * kVectorBytes; }
  static constexpr uint32_t delta(int stage) { return lse(kQueryStages) + stage * kVectorBytes; }
  static constexpr uint32_t kv_full() { return delta(kQueryStages); }
  static constexpr Pipeline<kQueryStages> q_pipeline() { return {kv_full() + 8}; }
  static constexpr Pipeline<kQueryStages> d_o_pipeline() {
    return {kv_full() + 8 + 16 * kQueryStages};
  }

  static std::vector<machine::Buffer> buffers() {
    std::vector<machine::Buffer> all;
    for (int i = 0; i < 2; ++i) {
      all.push_back({"LSE", lse(i), kVectorBytes});
      all.push_back({"Delta", delta(i), kVectorBytes});
      all.push_back({"dS", ds(i), kDs.bytes()});
      all.push_back({"dQ", dq(i), kDqBytes});
      all.push_back({"dK", k() + i * kGradientBytes, kGradientBytes});
    }
    return all;
  }
};

// Numbers of the hardware's barriers; from kDqFull on one for each warpgroup.
enum Named : int {
  kDsWritten = 1,
  kKSpent = 2,
  kDqFull = 3,
  kDqEmpty = 5,
  kDsWrittenAlone = 7,
  kDkStaged = 9,
};
inline constexpr int kMathThreads = kMathWarpgroups * 128;
inline constexpr int kDqThreads = 128 + 32;

struct Tensors {
  CUtensorMap q, d_o, k, v, dk;
  float *lse, *delta, *dq;
  float* dq_slice(int step, int warpgroup) const {
    return dq + (step * kMathWarpgroups + warpgroup) * (Smem::kDqBytes / 4);
  }
};

inline void load_query_block(Pipeline<kQueryStages> pipeline, PipelineState<kQueryStages> at,
                             const CUtensorMap& map, uint32_t tile, const float* from,
                             uint32_t vector, int step) {
  const uint32_t full = pipeline.full(at.stage());
  pipeline.wait_empty(at);
  ptx::mbarrier_arrive_expect_tx(full, uint32_t(Smem::kQuery.bytes() + Smem::kVectorBytes));
  ptx::cp_async_bulk_tensor_load(tile, map, {0, step * kQueries, 0, 0}, full);
  ptx::cp_async_bulk_load(vector, from + step * kQueries, Smem::kVectorBytes, full);
}

inline void produce(const Tensors& t) {
  ptx::mbarrier_arrive_expect_tx(Smem::kv_full(), uint32_t(2 * Smem::kKv.bytes()));
  ptx::cp_async_bulk_tensor_load(Smem::k(), t.k, {0, 0, 0, 0}, Smem::kv_full());
  ptx::cp_async_bulk_tensor_load(Smem::v(), t.v, {0, 0, 0, 0}, Smem::kv_full());
  PipelineState<kQueryStages> at;
  for (int step = 0; step < kSteps; ++step, at.advance()) {
    const int stage = int(at.stage());
    load_query_block(Smem::q_pipeline(), at, t.q, Smem::q(stage), t.lse, Smem::lse(stage), step);
    load_query_block(Smem::d_o_pipeline(), at, t.d_o, Smem::d_o(stage), t.delta, Smem::delta(stage),
                     step);
  }
}

inline void add_dq(const Tensors& t, Break b) {
  for (int step = 0; step < kSteps; ++step) {
    for (int wg = 0; wg < kMathWarpgroups; ++wg) {
      if (b != Break::kAddedUnasked) ptx::bar_sync(kDqFull + wg, kDqThreads);
      machine::store_bytes(t.dq_slice(step, wg), Smem::dq(wg), Smem::kDqBytes, true);
      ptx::cp_async_bulk_commit_group();
      if (b != Break::kNoWaitRead) ptx::cp_async_bulk_wait_group_read<0>();
      ptx::bar_arrive(kDqEmpty + wg, kDqThreads);
    }
  }
  ptx::cp_async_bulk_wait_group_read<0>();
}

// One warpgroup: 64 keys of S^T, dP^T, dK and dV; half of the columns of dQ.
class Math {
 public:
  Math(const Tensors& tensors, int warpgroup, Break b) : t_(tensors), wg_(warpgroup), break_(b) {}

  void run() {
    ptx::mbarrier_wait_parity(Smem::kv_full(), 0);
    PipelineState<kQueryStages> at;
    for (int step = 0; step < kSteps; ++step, at.advance()) multiply(step, at);
    store_dk();
  }

 private:
  static constexpr Element kE = Element::kBf16;
  template <int Columns>
  using Accumulator = float[Columns / 2];

  void multiply(int step, PipelineState<kQueryStages> at) {
    const int stage = int(at.stage());
    const int ds_stage = break_ == Break::kOneDsStage ? 0 : step % kDsStages;
    const uint32_t q = Smem::q(stage), d_o = Smem::d_o(stage), ds = Smem::ds(ds_stage);
    float pair[2];
    Accumulator<kQueries> s, dp;
    Accumulator<kColumns / kMathWarpgroups> dq;

    if (break_ == Break::kVectorUnawaited) ptx::ld_shared_f32x2(Smem::lse(stage), pair);
    Smem::q_pipeline().wait_full(at);
    ptx::ld_shared_f32x2(Smem::lse(stage), pair);
    scores(s, Smem::k(), q);
    Smem::d_o_pipeline().wait_full(at);
    ptx::ld_shared_f32x2(Smem::delta(stage), pair);
    scores(dp, Smem::v(), d_o);
    ptx::wgmma_wait_group<0>();

    uint32_t p[4];
    for (uint32_t& x : p) x = pack_pair<kE>(ex2(s[0]), ex2(s[1]));
    for (int k = 0; k < kQueries; k += kMmaDepth) {
      ptx::wgmma_m64k16_rs<kE>(dv_, p, rows_of(Smem::kQuery, d_o, k), 1);
    }
    ptx::wgmma_commit_group();
    store_ds(ds, dp);

    // dQ = dS K, then dK += dS^T Q, both from the stored dS.
    for (int k = 0; k < kKeys; k += kMmaDepth) {
      ptx::wgmma_m64k16_ss<kE, Major::kK, Major::kMn>(
          dq, columns_of(Smem::kDs, ds, k), rows_of(Smem::kKv, Smem::k(), k) + dq_column() / 16,
          k != 0);
    }
    ptx::wgmma_commit_group();
    for (int k = 0; k < kQueries; k += kMmaDepth) {
      const uint32_t my_keys = ds + uint32_t(wg_ * Smem::kDs.slab_bytes());
      ptx::wgmma_m64k16_ss<kE, Major::kMn, Major::kMn>(dk_, rows_of(Smem::kDs, my_keys, k),
                                                       rows_of(Smem::kQuery, q, k), 1);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<2>();
    Smem::d_o_pipeline().release(at.stage());
    if (break_ == Break::kReleasedEarly) Smem::q_pipeline().release(at.stage());
    if (break_ == Break::kDqWrittenInFlight) dq[3] = 0;
    if (break_ != Break::kDqReadInFlight) ptx::wgmma_wait_group<1>();
    stage_dq(step, dq);
    ptx::wgmma_wait_group<0>();
    if (break_ != Break::kReleasedEarly) Smem::q_pipeline().release(at.stage());
  }

  // Rows of 64 keys times 64 queries.
  void scores(Accumulator<kQueries>& s, uint32_t keys, uint32_t queries) {
    const uint32_t mine = keys + uint32_t(wg_ * kRowsPerWarpgroup * Smem::kKv.row_bytes());
    for (int k = 0; k < kColumns; k += kMmaDepth) {
      ptx::wgmma_m64k16_ss<kE>(s, columns_of(Smem::kKv, mine, k),
                               columns_of(Smem::kQuery, queries, k), k != 0);
    }
    ptx::wgmma_commit_group();
  }

  void store_ds(uint32_t ds, const Accumulator<kQueries>& dp) {
    const uint32_t packed[4] = {pack_pair<kE>(dp[0], dp[1])};
    const uint32_t mine = ds + uint32_t(wg_ * Smem::kDs.slab_bytes());
    for (int row = 0; row < kQueries; row += 16) {
      ptx::stmatrix_x4_trans(mine + uint32_t(row * Smem::kDs.row_bytes()), packed);
    }
    const bool late = break_ == Break::kFenceAfterBarrier;
    if (break_ != Break::kNoFence && !late) ptx::fence_proxy_async();
    if (break_ == Break::kBarrierOfOneWarpgroup) {
      ptx::bar_sync(kDsWrittenAlone + wg_, 128);
    } else if (break_ != Break::kNoBarrier) {
      ptx::bar_sync(kDsWritten, kMathThreads);
    }
    if (late) ptx::fence_proxy_async();
  }

  void stage_dq(int step, const Accumulator<kColumns / kMathWarpgroups>& dq) {
    const bool late = break_ == Break::kStagedBeforeAsked;
    if (step > 0 && !late) ptx::bar_sync(kDqEmpty + wg_, kDqThreads);
    ptx::st_shared_f32x4(Smem::dq(wg_), {dq[0], dq[1], dq[2], dq[3]});
    if (step > 0 && late) ptx::bar_sync(kDqEmpty + wg_, kDqThreads);
    if (break_ != Break::kStagedUnfenced) ptx::fence_proxy_async();
    ptx::bar_arrive(kDqFull + wg_, kDqThreads);
  }

  // dK leaves over the place of K, which nobody needs any more.
  void store_dk() {
    const bool leads = thread_in_block() % 128 == 0;
    if (break_ != Break::kStagedOverK) ptx::bar_sync(kKSpent, kMathThreads);
    // The writer's last arrival, so that its barrier ends at rest.
    ptx::bar_sync(kDqEmpty + wg_, kDqThreads);
    const uint32_t mine = Smem::k() + uint32_t(wg_ * Smem::kGradientBytes);
    const uint32_t packed[4] = {pack_pair<kE>(dk_[0], dv_[0])};
    ptx::stmatrix_x4(mine, packed);
    ptx::fence_proxy_async();
    ptx::bar_sync(kDkStaged + wg_, 128);
    if (leads) {
      ptx::cp_async_bulk_tensor_store(t_.dk, {0, wg_ * kRowsPerWarpgroup, 0, 0}, mine);
      ptx::cp_async_bulk_commit_group();
      if (break_ != Break::kLeftInFlight) ptx::cp_async_bulk_wait_group_read<0>();
    }
  }

  static uint64_t columns_of(tile::TileLayout layout, uint32_t address, int column) {
    return tile::descriptor(layout, tile::k_major_low(address),
                            layout.k_major_step(column / kMmaDepth));
  }
  static uint64_t rows_of(tile::TileLayout layout, uint32_t address, int row) {
    return tile::descriptor(layout, tile::mn_major_low(layout, address),
                            layout.mn_major_step(row / kMmaDepth));
  }
  uint64_t dq_column() const { return uint64_t(wg_ * kColumns / kMathWarpgroups * bytes_of(kE)); }

  const Tensors& t_;
  const int wg_;
  const Break break_;
  Accumulator<kColumns> dk_{}, dv_{};
};

inline void kernel(const Tensors& t, Break b) {
  const int warp = int(threadIdx.x) / 32, warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(Smem::kv_full(), 1);
    Smem::q_pipeline().init(kMathWarpgroups * 4);
    Smem::d_o_pipeline().init(kMathWarpgroups * 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    b == Break::kTooManyRegisters ? ptx::setmaxnreg_dec<80>() : ptx::setmaxnreg_dec<72>();
    if (warp == 0) produce(t);
    if (warp == 1) add_dq(t, b);
  } else {
    ptx::setmaxnreg_inc<216>();
    Math(t, warpgroup - 1, b).run();
  }
}

}  // namespace fa3::hopper::small_backward
