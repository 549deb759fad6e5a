// SPDX-License-Identifier: Apache-2.0
// 64 query rows by two consumer warpgroups, rows of 16 bits. Blocks of keys belong to the
// warpgroups in turn: the owner multiplies Q K^T and computes P. Each warpgroup has the output of
// all rows and half of the value channels, and adds P V of every block: its own P from registers,
// the other's from shared memory. So one warpgroup computes P while the other multiplies.
//
// The order in which warpgroups 0 and 1 work on blocks 0 and 1, then 2 and 3, ... (QK: scores,
// P: softmax, PV: half of the channels):
//   0: P(0)          PV(0)  PV(1)  QK(2)          P(2) ...
//   1: QK(1) PV(0)   P(1)   PV(1)         QK(3)   PV(2) ...
// P(0) is announced to warpgroup 1 with its rows' references, P(1) to warpgroup 0: one place in
// shared memory is enough, because a P is stored by the one who has read the P before. The ring
// has room for two blocks. A stage is released by both warpgroups, by each as soon as it has no
// more products to come of it. Next: latent_finish.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/score.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideRows : LatentQueries<C, C.consumer_threads()> {
  using Queries = LatentQueries<C, C.consumer_threads()>;
  using Queries::params_, Queries::tile_, Queries::first_row_, Queries::q_, Queries::thread_;

  static constexpr int kHalfSlabs = kValueSlabs / 2, kHalfChannels = kHalfSlabs * kSlabChannels;
  // nvcc has no members of a class's constants in device code: functions copy a layout first.
  static constexpr tile::TileLayout kStageLayout{kLatentBlockKeys, C.stage_slabs() * kSlabChannels};
  static constexpr tile::TileLayout kValuesLayout{kLatentBlockKeys, kHalfChannels};
  static constexpr tile::TileLayout kPLayout{C.rows, kLatentBlockKeys};
  static constexpr int kScores = kLatentBlockKeys / 2, kOutputs = kHalfChannels / 2;  // of a thread
  static_assert(C.rows == kLatentBlockKeys);  // slabs of queries lie as slabs of keys

  using Score = cuda::ScoreOf16BitP<cuda::ScaledScore, kLatentBlockKeys>;
  using PFragment = tile::PFragment<kValuesLayout>;

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char q[C.slabs()][C.slab_of_q_bytes()];
    alignas(kSmemAlignment) unsigned char p[kPLayout.bytes()];
    float refs[C.rows];  // of the P in `p`
    float sums[C.consumers()][C.rows];
  };

  // thread: of both warpgroups.
  __device__ __forceinline__ LatentWideRows(const LatentParams& params, Smem& smem,
                                            const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                            uint32_t, int thread)
      : Queries(params, ptx::cvta_to_shared(smem.q), thread),
        smem_(smem),
        pipeline_(pipeline),
        stages_(stages),
        p_(ptx::cvta_to_shared(smem.p)),
        warpgroup_(int(uniform(uint32_t(thread / kWarpgroupSize)))) {
    score_.set_scale(params.scale_log2);
  }

  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    tile_ = tile;
    first_row_ = first_row;
    this->load_queries();
    sync();
#pragma unroll
    for (float& o : output_) o = 0.0f;
    state_ = {};
  }

  __device__ __forceinline__ void attend(const LatentSegment& segment) {
    // A warpgroup has a half of the ring, whichever half a segment begins in.
    (blocks_ + uint32_t(warpgroup_)) % 2 == 0 ? attend_first(segment) : attend_second(segment);
    blocks_ += uint32_t(segment.end - segment.first);
  }

  // Stores the rows of a tile that has no other parts.
  __device__ __forceinline__ void finish() {
    add_up_sums();
    const MlaProblem& p = params_.problem;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = first_row_ + row_of(r);
      if (row >= tile_.rows) continue;
      const ResultRow at = result_row(params_, tile_, row);
      const LatentSum sum{state_.ref[r], state_.sum[r]};
      const float factor = output_factor(p, sum, at.head);
      if (p.o.dtype == DType::float32) {
        store_row(p.o.at<float>(at.b, at.row, at.head), r, factor);
      } else {
        store_row(p.o.at<uint16_t>(at.b, at.row, at.head), r, factor);
      }
      if (stores_statistics()) store_statistics(p, sum, at);
    }
  }

  // Stores the part's results: rows from `first` on, in the order of all partial results.
  __device__ __forceinline__ void store_part(int64_t first) {
    add_up_sums();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int64_t at = first + row_of(r);
      if (first_row_ + row_of(r) >= tile_.rows) continue;
      store_row(params_.partial_o + at * kLatentValueDim, r, 1.0f);
      if (stores_statistics()) params_.partial_sums[at] = {state_.ref[r], state_.sum[r]};
    }
  }

 private:
  // Blocks are counted from the segment's first.
  __device__ __forceinline__ void attend_first(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    float scores[kScores];
    if (count > 0) multiply_keys(scores, segment.first, 0);  // a part may have no keys
#pragma unroll 1
    for (int i = 0; i < count; i += 2) {
      PFragment p;
      soften(scores, segment.first + i, p);
      publish(p);
      multiply_own(i, p);
      if (i + 1 < count) {
        wait_for_other();
        take_references();
        release(i + 1, false);
        issue_other(i + 1);
        ptx::wgmma_wait_group<0>();
        release(i + 1, true);
      }
      if (i + 2 < count) multiply_keys(scores, segment.first, i + 2);
    }
  }

  __device__ __forceinline__ void attend_second(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    float scores[kScores];
    if (count > 1) multiply_keys(scores, segment.first, 1);
    int i = 0;
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      wait_for_other();
      take_references();
      release(i, false);
      issue_other(i);
      PFragment p;
      const cuda::StepResult moved = exponentiate(scores, segment.first + i + 1, p);
      ptx::wgmma_wait_group<0>();
      release(i, true);
      rescale(moved.rescale);
      publish(p);
      multiply_own(i + 1, p);
      if (i + 3 < count) multiply_keys(scores, segment.first, i + 3);
    }
    if (i < count) {
      wait_for_other();
      take_references();
      release(i, false);
      issue_other(i);
      ptx::wgmma_wait_group<0>();
      release(i, true);
    }
  }

  // Named barrier of both warpgroups; these kernels have no helper warps.
  __device__ __forceinline__ void sync() const {
    ptx::bar_sync(int(NamedBarrier::kHelpers), C.consumer_threads());
  }

  // The other's P and references are there; the own ones are.
  __device__ __forceinline__ void wait_for_other() const {
    ptx::bar_sync(int(NamedBarrier::kPingPong) + warpgroup_, kPingPongThreads);
  }
  __device__ __forceinline__ void tell_other() const {
    const int barrier = int(NamedBarrier::kPingPong) + 1 - warpgroup_;
    // racecheck reports what bar.arrive orders: in a build for it each waits for the one it tells.
    if constexpr (ptx::kEveryLaneArrives) {
      ptx::bar_sync(barrier, kPingPongThreads);
    } else {
      ptx::bar_arrive(barrier, kPingPongThreads);
    }
  }

  // The query row, in the tile, of the thread's number r.
  __device__ __forceinline__ int row_of(int r) const {
    return cuda::fragment_row(thread_ % kWarpgroupSize) + r * kRowDistance;
  }
  __device__ __forceinline__ bool leads_quad() const {
    return thread_ % kQuadLanes == 0;
  }
  __device__ __forceinline__ bool stores_statistics() const {
    return warpgroup_ == 0 && leads_quad();
  }

  // ---- The ring: block i of the segment is block blocks_ + i of all ----

  __device__ __forceinline__ uint32_t first_stage(int i) const {
    return (blocks_ + uint32_t(i)) % 2 * uint32_t(C.block_stages());
  }
  __device__ __forceinline__ void wait_full(int i, int stage) const {
    ptx::mbarrier_wait_parity(pipeline_.full(first_stage(i) + uint32_t(stage)),
                              (blocks_ + uint32_t(i)) / 2 % 2);
  }
  // Releases the block's stages that have values of this warpgroup, or those that have none.
  __device__ __forceinline__ void release(int i, bool of_values) const {
    const int first = warpgroup_ * kHalfSlabs, end = first + kHalfSlabs;
#pragma unroll
    for (int stage = 0; stage < C.block_stages(); ++stage) {
      const int slab = stage * C.stage_slabs();
      const bool has_values = slab < end && slab + C.stage_slabs() > first;
      if (has_values == of_values && leads_warp()) {
        pipeline_.release(first_stage(i) + uint32_t(stage));
      }
    }
  }

  // ---- Products ----

  // S = Q K^T of an own block, as its stages come.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], int first_block, int i) {
    constexpr tile::TileLayout kStage = kStageLayout;
    if (params_.problem.sparse) look_up(first_block + i);
    const uint32_t keys = uniform(stages_ + first_stage(i) * C.stage_bytes());
#pragma unroll
    for (int stage = 0; stage < C.block_stages(); ++stage) {
      wait_full(i, stage);
      ptx::fence_proxy_async();  // copies came through the generic proxy
      ptx::wgmma_fence();
      const auto offset = uint32_t(stage * C.stage_bytes());
      tile::issue_abt<C.element, kStage, kStage>(scores, tile::k_major_low(q_ + offset),
                                                 tile::k_major_low(keys + offset), stage != 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    release(i, false);
  }

  __device__ __forceinline__ uint32_t values(int i) const {
    constexpr tile::TileLayout kValues = kValuesLayout;
    const uint32_t block = stages_ + first_stage(i) * C.stage_bytes();
    return uniform(tile::mn_major_low(kValues, block + uint32_t(warpgroup_ * kValues.bytes())));
  }

  // O += P V of an own block.
  __device__ __forceinline__ void multiply_own(int i, const PFragment& p) {
    constexpr tile::TileLayout kValues = kValuesLayout;
    ptx::wgmma_fence();
    tile::issue_ab<C.element, kValues>(output_, p, values(i));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    release(i, true);
  }

  // O += P V of the other's block. The caller waits.
  __device__ __forceinline__ void issue_other(int i) {
    constexpr tile::TileLayout kP = kPLayout, kValues = kValuesLayout;
    ptx::fence_proxy_async();
    ptx::wgmma_fence();
    tile::issue_ab<C.element, kP, kValues>(output_, tile::k_major_low(p_), values(i), true);
    ptx::wgmma_commit_group();
  }

  // ---- Masks ----

  // Which keys of the block the indices name.
  __device__ __forceinline__ void look_up(int block) {
    const SelectedKeys& keys = params_.problem.keys;
    const int32_t* const indices = keys.of(tile_.b, tile_.first_token);
    uint32_t named[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block * kLatentBlockKeys + half * kWarpSize + ptx::lane();
      const int slot = key < tile_.keys ? __ldg(indices + key) : -1;
      named[half] =
          __ballot_sync(0xffffffff, slot >= 0 && slot / params_.page_size < keys.cache.pages);
    }
    named_ = uint64_t{named[1]} << 32 | named[0];
  }

  __device__ __forceinline__ void mask(float (&scores)[kScores], int block) const {
    const MlaProblem& p = params_.problem;
    uint64_t sees[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      int count = tile_.keys - block * kLatentBlockKeys;
      if (p.causal) count -= tile_.tokens - 1 - (first_row_ + row_of(r)) / params_.heads;
      sees[r] = count >= kLatentBlockKeys ? ~uint64_t{0}
                : count > 0               ? (uint64_t{1} << count) - 1
                                          : 0;
      if (p.sparse) sees[r] &= named_;
    }
    if ((sees[0] & sees[1]) == ~uint64_t{0}) return;
    const int lane_column = cuda::fragment_lane_column(thread_);
#pragma unroll
    for (uint64_t& s : sees) s >>= lane_column;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const uint64_t bit = sees[cuda::fragment_row_index(i)] >> cuda::fragment_column(i) & 1;
      if (bit == 0) scores[i] = -kInfinity;
    }
  }

  // ---- Softmax ----

  // Scores become P. Moves the references, and sums with them; the caller moves the output.
  __device__ __forceinline__ cuda::StepResult exponentiate(float (&scores)[kScores], int block,
                                                           PFragment& p) {
    mask(scores, block);
    cuda::StepResult result;
    cuda::online_step(scores, state_, score_, result);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      state_.sum[r] = __fmaf_rn(state_.sum[r], result.rescale[r], result.block_sum[r]);
    }
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      p[i / 8][i / 2 % 4] = cuda::pack_pair<C.element>(scores[i], scores[i + 1]);
    }
    return result;
  }
  __device__ __forceinline__ void soften(float (&scores)[kScores], int block, PFragment& p) {
    rescale(exponentiate(scores, block, p).rescale);
  }

  // References seldom move: most often the vote is all that is done.
  __device__ __forceinline__ void rescale(const float (&factor)[kRowsPerThread]) {
    if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output_[i] *= factor[cuda::fragment_row_index(i)];
  }

  // Gives the other warpgroup P and its references.
  __device__ __forceinline__ void publish(const PFragment& p) {
    constexpr tile::TileLayout kP = kPLayout;
    const int matrix = ptx::lane() / 8, warp = thread_ / kWarpSize % kWarpsPerWarpgroup;
    const int row = warp * kRowsPerWarp + matrix % 2 * 8 + ptx::lane() % 8;
    // The products of all four warps that read the P before are over.
    ptx::bar_sync(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize);
#pragma unroll
    for (int step = 0; step < kLatentBlockKeys / 16; ++step) {
      const int chunk = kP.swizzled_chunk(step * 2 + matrix / 2, row);
      ptx::stmatrix_x4(p_ + uint32_t(row * kP.row_bytes() + chunk * tile::kChunkBytes), p[step]);
    }
    if (leads_quad()) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) smem_.refs[row_of(r)] = state_.ref[r];
    }
    ptx::fence_proxy_async();
    tell_other();
  }

  // Moves sums and output to the references of the other's P.
  __device__ __forceinline__ void take_references() {
    float factor[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float ref = smem_.refs[row_of(r)];
      factor[r] = cuda::ex2(state_.ref[r] - cuda::finite_reference(ref));
      state_.ref[r] = ref;
      state_.sum[r] *= factor[r];
    }
    rescale(factor);
  }

  // ---- Results ----

  // Over the thread's keys, then over both warpgroups'.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float sum = cuda::quad_sum(state_.sum[r]);
      if (leads_quad()) smem_.sums[warpgroup_][row_of(r)] = sum;
    }
    sync();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      state_.sum[r] = smem_.sums[0][row_of(r)] + smem_.sums[1][row_of(r)];
    }
  }

  template <class T>
  __device__ __forceinline__ void store_row(T* row, int r, float factor) const {
    T* const to = row + warpgroup_ * kHalfChannels + cuda::fragment_lane_column(thread_);
    const bool pairs = reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0;
#pragma unroll
    for (int i = 2 * r; i < kOutputs; i += 4) {
      store_pair(to + cuda::fragment_column(i), output_[i] * factor, output_[i + 1] * factor,
                 pairs);
    }
  }
  static __device__ __forceinline__ void store_pair(float* to, float low, float high, bool pairs) {
    if (pairs) {
      *reinterpret_cast<float2*>(to) = {low, high};
    } else {
      to[0] = low, to[1] = high;
    }
  }
  static __device__ __forceinline__ void store_pair(uint16_t* to, float low, float high,
                                                    bool pairs) {
    const uint32_t both = cuda::pack_pair<C.element>(low, high);
    if (pairs) {
      *reinterpret_cast<uint32_t*>(to) = both;
    } else {
      to[0] = uint16_t(both), to[1] = uint16_t(both >> 16);
    }
  }

  Smem& smem_;
  const Pipeline<C.stages()> pipeline_;
  const uint32_t stages_, p_;
  const int warpgroup_;
  Score score_;
  uint32_t blocks_ = 0;     // of all tiles before
  uint64_t named_ = 0;      // keys of the own block that indices name
  float output_[kOutputs];  // half of the channels
  cuda::RowState state_;    // sums: of the thread's keys in own blocks, until add_up_sums()
};

}  // namespace fa3::hopper
