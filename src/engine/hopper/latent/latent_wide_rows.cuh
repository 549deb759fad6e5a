// SPDX-License-Identifier: Apache-2.0
// 64 query rows by two consumer warpgroups, rows of 16 bits. Blocks of keys belong to the
// warpgroups in turn, those of a segment from 0 on: the owner multiplies Q K^T and computes P. Each
// warpgroup has the output of all rows and half of the value channels, and adds P V of every block:
// its own P from registers, the other's from shared memory.
//
// A block comes in two stages, the halves of its channels. A half's last reader is the warpgroup
// that has its channels: nobody else releases it. So each warpgroup multiplies its own P at once,
// and what that releases is loaded under all that follows. For blocks 0 and 1, then 2 and 3, ...
// (QK: scores, P: softmax, PV: half of the channels, R: references of rows):
//   0: P(0) R(0)  PV(0)       | P(0) moved to R(1) and stored  PV(1)  QK(2) ...
//   1: QK(1)    | P(1) R(1)  PV(1), P(1) stored              | PV(0)  QK(3) ...
// Both take part at a |. References of P(0) are given first, as softmax of P(1) goes on from them,
// then P(1) and its references, then P(0). Next: latent_finish.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/score.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/latent/latent_wide_ring.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideRows : LatentQueries<C, C.consumer_threads()> {
  using Queries = LatentQueries<C, C.consumer_threads()>;
  using Queries::params_, Queries::tile_, Queries::first_row_, Queries::q_, Queries::thread_;

  using Ring = LatentWideRing<C>;
  static constexpr int kHalfChannels = Ring::kHalfSlabs * kSlabChannels;
  // nvcc has no members of a class's constants in device code: functions copy a layout first.
  template <int Half>
  static constexpr tile::TileLayout kHalfLayout{
      kLatentBlockKeys, (Ring::end_slab(Half) - Ring::first_slab(Half)) * kSlabChannels};
  static constexpr tile::TileLayout kValuesLayout{kLatentBlockKeys, kHalfChannels};
  static constexpr tile::TileLayout kPLayout{C.rows, kLatentBlockKeys};
  static constexpr int kScores = kLatentBlockKeys / 2, kOutputs = kHalfChannels / 2;  // of a thread
  static_assert(C.rows == kLatentBlockKeys);  // slabs of queries lie as slabs of keys
  // P of even blocks lies where their rope channels were, if they have some.
  static constexpr bool kHasRope = C.slabs() > kValueSlabs;

  using Score = cuda::ScoreOf16BitP<cuda::ScaledScore, kLatentBlockKeys>;
  using PFragment = tile::PFragment<kValuesLayout>;

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char q[C.slabs()][C.slab_of_q_bytes()];
    alignas(kSmemAlignment) unsigned char p[kHasRope ? 1 : 2][kPLayout.bytes()];  // of odd blocks
    float refs[C.consumers()][C.rows];
    float sums[C.consumers()][C.rows];
  };

  // thread: of both warpgroups.
  __device__ __forceinline__ LatentWideRows(const LatentParams& params, Smem& smem,
                                            const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                            uint32_t, int thread)
      : Queries(params, ptx::cvta_to_shared(smem.q), thread),
        smem_(smem),
        ring_(pipeline, stages),
        odd_p_(ptx::cvta_to_shared(smem.p)),
        even_p_(kHasRope ? ring_.slab(0, kValueSlabs) : odd_p_ + uint32_t(sizeof(smem.p[0]))),
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
    warpgroup_ == 0 ? attend_even(segment) : attend_odd(segment);
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
  __device__ __forceinline__ void attend_even(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    float scores[kScores];
    PFragment p;
    if (count > 0) {  // a part may have no keys
      issue_keys<0>(scores, 0, false);
      issue_keys<1>(scores, 0, true);
      finish_keys(segment.first);
    }
    int i = 0;
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      soften(scores, segment.first + i, p);
      give_references();
      tell_other();
      multiply_even(p);
      wait_for_other();
      move_to_references(scores, p);
      give_even(p);
      if (i + 2 < count) {
        issue_other(odd_p_, 1);
        issue_keys<0>(scores, 0, false);
        ptx::wgmma_wait_group<1>();
        ring_.release(1, 0);
        issue_keys<1>(scores, 0, true);
        finish_keys(segment.first + i + 2);
      } else {
        issue_other(odd_p_, 1);
        ptx::wgmma_wait_group<0>();
        ring_.release(1, 0);
      }
      ring_.next(1);
    }
    if (i < count) {
      soften(scores, segment.first + i, p);
      give_references();
      multiply_even(p);
      sync_warpgroup();  // all warps' scores are there
      give_even(p);
    }
  }
  __device__ __forceinline__ void multiply_even(const PFragment& p) {
    issue_own(0, p);
    ptx::wgmma_wait_group<0>();
    ring_.release(0, 0);
  }
  __device__ __forceinline__ void give_even(const PFragment& p) {
    store_p(even_p_, p);
    tell_other();
    ring_.next(0);
  }

  __device__ __forceinline__ void attend_odd(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    int i = 0;
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      float scores[kScores];
      PFragment p;
      issue_keys<1>(scores, 1, false);  // loaded first
      issue_keys<0>(scores, 1, true);
      finish_keys(segment.first + i + 1);
      wait_for_other();
      take_references();
      soften(scores, segment.first + i + 1, p);
      issue_own(1, p);
      give_references();
      store_p(odd_p_, p);
      tell_other();
      wait_for_other();
      issue_other(even_p_, 0);
      ptx::wgmma_wait_group<1>();
      ring_.release(1, 1);
      ring_.next(1);
      ptx::wgmma_wait_group<0>();
      ring_.release(0, 1);
      ring_.next(0);
    }
    if (i < count) {
      wait_for_other();
      take_references();
      issue_other(even_p_, 0);
      ptx::wgmma_wait_group<0>();
      ring_.release(0, 1);
      ring_.next(0);
    }
  }

  // Named barrier of both warpgroups; these kernels have no helper warps.
  __device__ __forceinline__ void sync() const {
    ptx::bar_sync(int(NamedBarrier::kHelpers), C.consumer_threads());
  }

  // Turns: what the other has said that it gives is there.
  __device__ __forceinline__ void wait_for_other() const {
    ptx::bar_sync(int(NamedBarrier::kPingPong) + warpgroup_, kPingPongThreads);
  }
  __device__ __forceinline__ void tell_other() const {
    ptx::bar_arrive(int(NamedBarrier::kPingPong) + 1 - warpgroup_, kPingPongThreads);
  }
  __device__ __forceinline__ void sync_warpgroup() const {
    ptx::bar_sync(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize);
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

  // ---- Products. `odd`: of the odd block in the ring ----

  // S = or S += Q K^T over half of the channels of an own block.
  template <int Half>
  __device__ __forceinline__ void issue_keys(float (&scores)[kScores], int odd, bool adds) {
    constexpr tile::TileLayout kHalf = kHalfLayout<Half>;
    constexpr int kFirst = Ring::first_slab(Half);
    const uint32_t keys = uniform(ring_.slab(odd, kFirst));
    ring_.wait_full(odd, Half);
    ptx::fence_proxy_async();  // copies came through the generic proxy
    ptx::wgmma_fence();
    tile::issue_abt<C.element, kHalf, kHalf>(
        scores, tile::k_major_low(q_ + uint32_t(kFirst * C.slab_of_q_bytes())),
        tile::k_major_low(keys), adds);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_keys(int block) {
    if (params_.problem.sparse) look_up(block);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ uint32_t values(int odd) const {
    constexpr tile::TileLayout kValues = kValuesLayout;
    return uniform(tile::mn_major_low(kValues, ring_.slab(odd, warpgroup_ * Ring::kHalfSlabs)));
  }

  // O += P V of an own block.
  __device__ __forceinline__ void issue_own(int odd, const PFragment& p) {
    constexpr tile::TileLayout kValues = kValuesLayout;
    ptx::wgmma_fence();
    tile::issue_ab<C.element, kValues>(output_, p, values(odd));
    ptx::wgmma_commit_group();
  }

  // O += P V of the other's block.
  __device__ __forceinline__ void issue_other(uint32_t p, int odd) {
    constexpr tile::TileLayout kP = kPLayout, kValues = kValuesLayout;
    ptx::fence_proxy_async();
    ptx::wgmma_fence();
    tile::issue_ab<C.element, kP, kValues>(output_, tile::k_major_low(p), values(odd), true);
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

  // Scores become P, and `p` what the products take. Moves the references, and sums and output
  // with them.
  __device__ __forceinline__ void soften(float (&scores)[kScores], int block, PFragment& p) {
    mask(scores, block);
    cuda::StepResult result;
    cuda::online_step(scores, state_, score_, result);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      state_.sum[r] = __fmaf_rn(state_.sum[r], result.rescale[r], result.block_sum[r]);
    }
    pack(scores, p);
    rescale(result.rescale);
  }
  static __device__ __forceinline__ void pack(const float (&scores)[kScores], PFragment& p) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      p[i / 8][i / 2 % 4] = cuda::pack_pair<C.element>(scores[i], scores[i + 1]);
    }
  }

  // References seldom move: most often the vote is all that is done. Returns whether one has.
  __device__ __forceinline__ bool rescale(const float (&factor)[kRowsPerThread]) {
    if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f)) return false;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output_[i] *= factor[cuda::fragment_row_index(i)];
    return true;
  }

  __device__ __forceinline__ void give_references() {
    if (!leads_quad()) return;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) smem_.refs[warpgroup_][row_of(r)] = state_.ref[r];
  }

  // Moves sums and output to the references that the other gave.
  __device__ __forceinline__ bool take_references(float (&factor)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float ref = smem_.refs[1 - warpgroup_][row_of(r)];
      factor[r] = cuda::ex2(state_.ref[r] - cuda::finite_reference(ref));
      state_.ref[r] = ref;
      state_.sum[r] *= factor[r];
    }
    return rescale(factor);
  }
  __device__ __forceinline__ void take_references() {
    float factor[kRowsPerThread];
    take_references(factor);
  }
  // And P.
  __device__ __forceinline__ void move_to_references(float (&scores)[kScores], PFragment& p) {
    float factor[kRowsPerThread];
    if (!take_references(factor)) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] *= factor[cuda::fragment_row_index(i)];
    pack(scores, p);
  }

  // P, for the other's products.
  __device__ __forceinline__ void store_p(uint32_t to, const PFragment& p) const {
    constexpr tile::TileLayout kP = kPLayout;
    const int matrix = ptx::lane() / 8, warp = thread_ / kWarpSize % kWarpsPerWarpgroup;
    const int row = warp * kRowsPerWarp + matrix % 2 * 8 + ptx::lane() % 8;
#pragma unroll
    for (int step = 0; step < kLatentBlockKeys / 16; ++step) {
      const int chunk = kP.swizzled_chunk(step * 2 + matrix / 2, row);
      ptx::stmatrix_x4(to + uint32_t(row * kP.row_bytes() + chunk * tile::kChunkBytes), p[step]);
    }
    ptx::fence_proxy_async();
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
  Ring ring_;
  const uint32_t odd_p_, even_p_;
  const int warpgroup_;
  Score score_;
  uint64_t named_ = 0;      // keys of the own block that indices name
  float output_[kOutputs];  // half of the channels
  cuda::RowState state_;    // sums: of the thread's keys in own blocks, until add_up_sums()
};

}  // namespace fa3::hopper
