// SPDX-License-Identifier: Apache-2.0
// 64 query rows by two consumer warpgroups; rows of 16 bits, or made so by the loader
// (latent_wide_byte_loader.cuh). Blocks of keys belong to the warpgroups in turn, those of a
// segment from 0 on: the owner multiplies Q K^T and computes P. Each warpgroup has the output of
// all rows and half of the value channels, and adds P V of every block: its own P from registers,
// the other's from shared memory.
//
// For blocks 0 and 1, then 2 and 3, ... (QK: scores, P: softmax, PV: half of the channels; "give":
// P and its references to the other):
//   0: P(0), give | PV(0)                   | PV(1)  QK(2)
//   1: QK(1)      | PV(0) P(1), give  PV(1) | QK(3)
// What is behind a | waits for what the other gives before it. P(1) goes on from the references of
// P(0). They seldom move, as they do when a score has outgrown them by 2^kMostP: so the second adds
// PV(0) while it still computes P(1).
//
// A block comes in two stages, the halves of its channels. A half's last reader is the warpgroup
// that has its channels: nobody else releases it. Both halves of block 0 are free before those of
// block 1. Next: latent_finish.cuh.
#pragma once

#include <type_traits>

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/wide/latent_scaled_queries.cuh"
#include "engine/hopper/latent/wide/latent_wide_ring.cuh"
#include "engine/hopper/latent/wide/latent_wide_scores.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideRows : LatentScaledQueries<C> {
  using Queries = LatentScaledQueries<C>;
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
  // Named barriers of both warpgroups: these kernels have no helper warps, and no more numbers are
  // taken.
  static constexpr int kMeeting = int(NamedBarrier::kHelpers), kEvenScores = kMeeting + 1;
  static constexpr float kMostP = 8;  // log2: how far scores may outgrow a reference

  static constexpr Element kElement = C.product_element();
  using Scores = std::conditional_t<C.converts(), LatentUnitScores, LatentWideScores>;
  using PFragment = tile::PFragment<kValuesLayout>;

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char q[C.slabs()][C.slab_of_q_bytes()];
    alignas(kSmemAlignment) unsigned char p[kHasRope ? 1 : 2][kPLayout.bytes()];  // of odd blocks
    float refs[C.consumers()][C.rows];  // first, the factors of scaled queries
    float sums[C.consumers()][C.rows];  // before, the largest unit (latent_wide_scores.cuh)
  };

  // thread: of both warpgroups.
  __device__ __forceinline__ LatentWideRows(const LatentParams& params, Smem& smem,
                                            const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                            int thread)
      : Queries(params, ptx::cvta_to_shared(smem.q), thread),
        smem_(smem),
        ring_(pipeline, stages),
        odd_p_(ptx::cvta_to_shared(smem.p)),
        even_p_(kHasRope ? ring_.slab(0, kValueSlabs) : odd_p_ + uint32_t(sizeof(smem.p[0]))),
        warpgroup_(int(uniform(uint32_t(thread / kWarpgroupSize)))),
        turns_(warpgroup_),
        score_(params.scale_log2) {}

  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    tile_ = tile;
    first_row_ = first_row;
    keys_of_all_ = tile.keys;
    if (params_.problem.causal) keys_of_all_ -= tile.tokens - 1 - first_row / params_.heads;
    if constexpr (C.converts()) {
      sync();  // factors lie where the last tile's results were read
      this->load_scaled_queries(
          [this](int row, float factor) { smem_.refs[0][row] = smem_.refs[1][row] = factor; });
      sync();
      const float factors[] = {smem_.refs[warpgroup_][row_of(0)],
                               smem_.refs[warpgroup_][row_of(1)]};
      score_.start(factors);
      largest_unit_ = kLeastLatentUnit;
    } else {
      this->load_queries();
      sync();
    }
#pragma unroll
    for (float& o : output_) o = 0.0f;
    state_ = {};
#pragma unroll
    for (float& most : most_) most = -cuda::kInfinity;
  }

  __device__ __forceinline__ void attend(const LatentSegment& segment) {
    warpgroup_ == 0 ? attend_even(segment) : attend_odd(segment);
  }

  // Stores the rows of a tile that has no other parts.
  __device__ __forceinline__ void finish() {
    float factor[kRowsPerThread];
    add_up_sums(factor);
    const MlaProblem& p = params_.problem;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = first_row_ + row_of(r);
      if (row >= tile_.rows) continue;
      const ResultRow at = result_row(params_, tile_, row);
      const LatentSum sum{state_.ref[r], state_.sum[r]};
      factor[r] *= output_factor(p, sum, at.head);
      if (p.o.dtype == DType::float32) {
        store_row(p.o.at<float>(at.b, at.row, at.head), r, factor[r]);
      }
      if (stores_statistics()) store_statistics(p, sum, at);
    }
    if (p.o.dtype != DType::float32) store_rows_of_warp(factor);
  }

  // Stores the part's results: rows from `first` on, in the order of all partial results. A lane's
  // four of 16 columns are neighbours there (combine_latent.cu).
  __device__ __forceinline__ void store_part(int64_t first) {
    float factor[kRowsPerThread];
    add_up_sums(factor);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int64_t at = first + row_of(r);
      if (first_row_ + row_of(r) >= tile_.rows) continue;
      float* const to = params_.partial_o + at * kLatentValueDim + warpgroup_ * kHalfChannels +
                        thread_ % kQuadLanes * 4;
#pragma unroll
      for (int i = 2 * r; i < kOutputs; i += 8) {
        *reinterpret_cast<float4*>(to + i / 8 * 16) = {
            output_[i] * factor[r], output_[i + 1] * factor[r], output_[i + 4] * factor[r],
            output_[i + 5] * factor[r]};
      }
      if (stores_statistics()) params_.partial_sums[at] = {state_.ref[r], state_.sum[r]};
    }
  }

 private:
  // Blocks are counted from the segment's first.
  __device__ __forceinline__ void attend_even(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    float scores[kScores];
    if (count > 0) {  // a part may have no keys
      look_up(segment.first);
      issue_keys<0>(scores, 0, false);
      issue_keys<1>(scores, 0, true);
      if (count > 1) let_odd_multiply();
      finish_keys();
    }
    int i = 0;
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      multiply_even(scores, segment.first + i);
      turns_.wait();
      move_references(read_references());
      issue_other(odd_p_, 1);
      if (i + 2 < count) {
        look_up(segment.first + i + 2);
        issue_keys<0>(scores, 0, false);
        ptx::wgmma_wait_group<1>();
        ring_.release(1, 0);
        issue_keys<1>(scores, 0, true);
        if (i + 3 < count) let_odd_multiply();
        finish_keys();
      } else {
        ptx::wgmma_wait_group<0>();
        ring_.release(1, 0);
      }
      ring_.next(1);
    }
    if (i < count) multiply_even(scores, segment.first + i);
  }
  __device__ __forceinline__ void multiply_even(float (&scores)[kScores], int block) {
    float largest[kRowsPerThread];
    References refs;
    PFragment p;
    find_largest(scores, block, 0, largest);
    if (choose_references(largest, own_references(), refs)) {
      move_references(refs);
      score_.rebase_large_rows(scores, largest, refs.of_row);
    }
    exponentiate(scores, refs, p);
    sync_warpgroup();  // P lies where other warps' products read keys
    give(even_p_, p);
    issue_own(0, p);
    ptx::wgmma_wait_group<0>();
    ring_.release(0, 0);
    ring_.next(0);
  }

  __device__ __forceinline__ void attend_odd(const LatentSegment& segment) {
    const int count = segment.end - segment.first;
    int i = 0;
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      float scores[kScores], largest[kRowsPerThread];
      References refs;
      PFragment p;
      look_up(segment.first + i + 1);
      wait_for_even_scores();
      issue_keys<1>(scores, 1, false);  // loaded first
      issue_keys<0>(scores, 1, true);
      finish_keys();
      find_largest(scores, segment.first + i + 1, 1, largest);
      turns_.wait();
      const References given = read_references();
      // Decided by the warpgroup: all of its warps wait for products, or none.
      const bool is_rare = is_of_warpgroup(choose_references(largest, given, refs));
      if (is_rare) move_references(given);
      issue_other(even_p_, 0);
      if (is_rare) {
        ptx::wgmma_wait_group<0>();
        move_references(refs);
        score_.rebase_large_rows(scores, largest, refs.of_row);
      }
      exponentiate(scores, refs, p);
      give(odd_p_, p);
      issue_own(1, p);
      ptx::wgmma_wait_group<1>();
      ring_.release(0, 1);
      ring_.next(0);
      ptx::wgmma_wait_group<0>();
      ring_.release(1, 1);
      ring_.next(1);
    }
    if (i < count) {
      turns_.wait();
      move_references(read_references());
      issue_other(even_p_, 0);
      ptx::wgmma_wait_group<0>();
      ring_.release(0, 1);
      ring_.next(0);
    }
  }

  __device__ __forceinline__ void sync() const {
    ptx::bar_sync(kMeeting, C.consumer_threads());
  }

  // Scores of an odd block wait until those of the even one are on their way: at the same time both
  // would take twice as long, and nothing be multiplied under softmax of the even one.
  __device__ __forceinline__ void let_odd_multiply() const {
    ptx::bar_arrive(kEvenScores, C.consumer_threads());
  }
  __device__ __forceinline__ void wait_for_even_scores() const {
    ptx::bar_sync(kEvenScores, C.consumer_threads());
  }
  __device__ __forceinline__ void sync_warpgroup() const {
    ptx::bar_sync(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize);
  }

  // Whether `value` is true in a thread of the warpgroup.
  __device__ __forceinline__ bool is_of_warpgroup(bool value) const {
    return ptx::bar_count(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize, value) != 0;
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
    constexpr int kFirst = Ring::first_slab(Half);
    const uint32_t keys = uniform(ring_.slab(odd, kFirst));
    ring_.wait_full(odd, Half);
    // Copies came through the generic proxy.
    if constexpr (!C.converts()) ptx::fence_proxy_async();
    ptx::wgmma_fence();
    const uint32_t q = q_ + uint32_t(kFirst * C.slab_of_q_bytes());
    if constexpr (C.converts() && kHasRope && Half == 1) {
      constexpr tile::TileLayout kValues = kValuesLayout, kRope{kLatentBlockKeys, kSlabChannels};
      constexpr uint32_t kBehind = Ring::kHalfSlabs * kSlabBytes;
      tile::issue_abt<kElement, kValues, kValues>(scores, tile::k_major_low(q),
                                                  tile::k_major_low(keys), adds);
      tile::issue_abt<C.element, kRope, kRope>(scores, tile::k_major_low(q + kBehind),
                                               tile::k_major_low(keys + kBehind), true);
    } else {
      constexpr tile::TileLayout kHalf = kHalfLayout<Half>;
      tile::issue_abt<kElement, kHalf, kHalf>(scores, tile::k_major_low(q), tile::k_major_low(keys),
                                              adds);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_keys() {
    if (params_.problem.sparse) find_named();
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
    tile::issue_ab<kElement, kValues>(output_, p, values(odd));
    ptx::wgmma_commit_group();
  }

  // O += P V of the other's block, which that has waited for.
  __device__ __forceinline__ void issue_other(uint32_t p, int odd) {
    constexpr tile::TileLayout kP = kPLayout, kValues = kValuesLayout;
    if constexpr (!C.converts()) ptx::fence_proxy_async();
    ptx::wgmma_fence();
    tile::issue_ab<kElement, kP, kValues>(output_, tile::k_major_low(p), values(odd), true);
    ptx::wgmma_commit_group();
  }

  // ---- Masks ----

  // Asks for the indices of an own block, long before find_named().
  __device__ __forceinline__ void look_up(int block) {
    if (!params_.problem.sparse) return;
    const int32_t* const indices = params_.problem.keys.of(tile_.b, tile_.first_token);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block * kLatentBlockKeys + half * kWarpSize + ptx::lane();
      slots_[half] = key < tile_.keys ? __ldg(indices + key) : -1;
    }
  }
  // Which keys of the block they name.
  __device__ __forceinline__ void find_named() {
    uint32_t named[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = slots_[half];
      named[half] = __ballot_sync(
          0xffffffff, slot >= 0 && slot / params_.page_size < params_.problem.keys.cache.pages);
    }
    named_ = uint64_t{named[1]} << 32 | named[0];
  }

  __device__ __forceinline__ void mask(float (&scores)[kScores], int block) const {
    const MlaProblem& p = params_.problem;
    if (p.sparse ? named_ == ~uint64_t{0} : (block + 1) * kLatentBlockKeys <= keys_of_all_) return;
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

  // What P is computed against: of the thread's rows, and the largest unit where keys have one.
  struct References {
    float of_row[kRowsPerThread];
    float largest_unit = 0;
  };

  // Masks an own block, and finds the rows' largest products in it.
  __device__ __forceinline__ void find_largest(float (&scores)[kScores], int block, int odd,
                                               float (&largest)[kRowsPerThread]) {
    if constexpr (C.converts()) score_.load_units(ring_.unit(odd, 0));
    mask(scores, block);
    score_.find_largest(scores, largest);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      most_[r] = fmaxf(most_[r], score_.score_of(r, largest[r]));
    }
  }

  // References of an own block go on from those `given`: most blocks move none, as P may be
  // 2^kMostP. `refs`: what P is computed against. Returns whether the warp has to move to them, or
  // has large ones.
  __device__ __forceinline__ bool choose_references(const float (&largest)[kRowsPerThread],
                                                    const References& given,
                                                    References& refs) const {
    bool is_large = false;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float of_block = score_.reference(r, largest[r]);
      const float ref = given.of_row[r];
      refs.of_row[r] = of_block > ref + kMostP ? of_block : ref;
      is_large |= cuda::is_large(refs.of_row[r]);
    }
    if constexpr (C.converts()) {
      refs.largest_unit = fmaxf(given.largest_unit, score_.largest_unit());
    }
    return __any_sync(0xffffffff, is_large || moves(refs));
  }

  // Scores become P, and `p` what the products take.
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores], const References& refs,
                                               PFragment& p) {
    if constexpr (C.converts()) {
      score_.exponentiate(scores, refs.of_row, refs.largest_unit, state_.sum);
    } else {
      score_.exponentiate(scores, refs.of_row, state_.sum);
    }
    pack<kElement>(scores, p);
  }
  template <Element E>
  static __device__ __forceinline__ void pack(const float (&scores)[kScores], PFragment& p) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      p[i / 8][i / 2 % 4] = cuda::pack_pair<E>(scores[i], scores[i + 1]);
    }
  }

  // ---- References ----

  __device__ __forceinline__ References own_references() const {
    return {.of_row = {state_.ref[0], state_.ref[1]}, .largest_unit = largest_unit_};
  }
  // The other's.
  __device__ __forceinline__ References read_references() const {
    References given;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      given.of_row[r] = smem_.refs[1 - warpgroup_][row_of(r)];
    }
    if constexpr (C.converts()) given.largest_unit = smem_.sums[1 - warpgroup_][row_of(0)];
    return given;
  }
  __device__ __forceinline__ bool moves(const References& refs) const {
    if constexpr (C.converts()) {
      if (refs.largest_unit != largest_unit_) return true;
    }
    return refs.of_row[0] != state_.ref[0] || refs.of_row[1] != state_.ref[1];
  }
  // Moves sums and output, of which no product is on its way.
  __device__ __forceinline__ void move_references(const References& refs) {
    if (!__any_sync(0xffffffff, moves(refs))) return;
    float factor[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      factor[r] = factor_of(state_.ref[r], refs.of_row[r]);
      state_.ref[r] = refs.of_row[r];
      state_.sum[r] *= factor[r];
    }
    if constexpr (C.converts()) {
      const float of_unit = factor_of(largest_unit_, refs.largest_unit);
      largest_unit_ = refs.largest_unit;
#pragma unroll
      for (float& f : factor) f *= of_unit;
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output_[i] *= factor[cuda::fragment_row_index(i)];
  }
  // What sums and output are multiplied by.
  static __device__ __forceinline__ float factor_of(float from, float to) {
    return from == to ? 1.0f : cuda::ex2(from - to);
  }

  // P of an own block and its references, for the other.
  __device__ __forceinline__ void give(uint32_t to, const PFragment& p) {
    store_p(to, p);
    if (leads_quad()) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) smem_.refs[warpgroup_][row_of(r)] = state_.ref[r];
      if constexpr (C.converts()) smem_.sums[warpgroup_][row_of(0)] = largest_unit_;
    }
    ptx::fence_proxy_async();
    turns_.pass();
  }

  // P for the other's products, which need a fence behind it; or as many outputs.
  __device__ __forceinline__ void store_p(uint32_t to, const PFragment& p) const {
    constexpr tile::TileLayout kP = kPLayout;
    const int matrix = ptx::lane() / 8, warp = thread_ / kWarpSize % kWarpsPerWarpgroup;
    const int row = warp * kRowsPerWarp + matrix % 2 * 8 + ptx::lane() % 8;
#pragma unroll
    for (int step = 0; step < kLatentBlockKeys / 16; ++step) {
      const int chunk = kP.swizzled_chunk(step * 2 + matrix / 2, row);
      ptx::stmatrix_x4(to + uint32_t(row * kP.row_bytes() + chunk * tile::kChunkBytes), p[step]);
    }
  }

  // ---- Results ----

  // Over the thread's keys, then over both warpgroups'. References become the rows' largest scores;
  // `factor`: what that makes of the output.
  __device__ __forceinline__ void add_up_sums(float (&factor)[kRowsPerThread]) {
    sync();  // all references were read
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float sum = cuda::quad_sum(state_.sum[r]);
      if (!leads_quad()) continue;
      smem_.sums[warpgroup_][row_of(r)] = sum;
      smem_.refs[warpgroup_][row_of(r)] = most_[r];
    }
    sync();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = row_of(r);
      const float most = fmaxf(smem_.refs[0][row], smem_.refs[1][row]);
      factor[r] = factor_of(state_.ref[r], most);
      state_.ref[r] = most;
      state_.sum[r] = (smem_.sums[0][row] + smem_.sums[1][row]) * factor[r];
      if constexpr (C.converts()) factor[r] *= Scores::output_factor(largest_unit_);
    }
  }

  // A warp's 16-bit outputs, by way of the place of the queries: a store has 16 bytes.
  __device__ __forceinline__ void store_rows_of_warp(const float (&factor)[kRowsPerThread]) {
    constexpr tile::TileLayout kP = kPLayout;
    constexpr int kChunk = tile::kChunkBytes / 2, kChunks = kSlabChannels / kChunk;
    const Operand& o = params_.problem.o;
    const uint32_t place = q_ + uint32_t(warpgroup_ * Ring::kHalfSlabs * kSlabBytes);
#pragma unroll
    for (int slab = 0; slab < Ring::kHalfSlabs; ++slab) {
      float outputs[kScores];
      PFragment narrow;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        outputs[i] = output_[slab * kScores + i] * factor[cuda::fragment_row_index(i)];
      }
      pack<C.element>(outputs, narrow);
      store_p(place + uint32_t(slab * kSlabBytes), narrow);
    }
    __syncwarp();
    const int chunk = ptx::lane() % kChunks;
    const int first =
        thread_ / kWarpSize % kWarpsPerWarpgroup * kRowsPerWarp + ptx::lane() / kChunks;
#pragma unroll 1
    for (int i = 0; i < kRowsPerWarp; i += kWarpSize / kChunks) {
      const int tile_row = first + i, row = first_row_ + tile_row;
      if (row >= tile_.rows) continue;
      const ResultRow at = result_row(params_, tile_, row);
      uint16_t* const to = o.at<uint16_t>(at.b, at.row, at.head) + warpgroup_ * kHalfChannels;
#pragma unroll
      for (int slab = 0; slab < Ring::kHalfSlabs; ++slab) {
        uint32_t eight[4];
        ptx::ld_shared_b32x4(
            place + uint32_t(slab * kSlabBytes + tile_row * kP.row_bytes() +
                             kP.swizzled_chunk(chunk, tile_row) * tile::kChunkBytes),
            eight);
        store_chunk(to + slab * kSlabChannels + chunk * kChunk, eight);
      }
    }
    sync();  // the next queries go there
  }
  static __device__ __forceinline__ void store_chunk(uint16_t* to, const uint32_t (&eight)[4]) {
    if (reinterpret_cast<uintptr_t>(to) % tile::kChunkBytes == 0) {
      *reinterpret_cast<uint4*>(to) = {eight[0], eight[1], eight[2], eight[3]};
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = uint16_t(eight[i / 2] >> i % 2 * 16);
  }

  __device__ __forceinline__ void store_row(float* row, int r, float factor) const {
    float* const to = row + warpgroup_ * kHalfChannels + cuda::fragment_lane_column(thread_);
    const bool pairs = reinterpret_cast<uintptr_t>(to) % (2 * sizeof(float)) == 0;
#pragma unroll
    for (int i = 2 * r; i < kOutputs; i += 4) {
      float* const pair = to + cuda::fragment_column(i);
      const float low = output_[i] * factor, high = output_[i + 1] * factor;
      if (pairs) {
        *reinterpret_cast<float2*>(pair) = {low, high};
      } else {
        pair[0] = low, pair[1] = high;
      }
    }
  }

  Smem& smem_;
  Ring ring_;
  const uint32_t odd_p_, even_p_;
  const int warpgroup_;
  const PingPong<C.consumers(), true> turns_;  // what the other gives is there
  Scores score_;
  int keys_of_all_ = 0;         // that all rows see
  int slots_[2];                // of the own block: indices of two keys
  uint64_t named_ = 0;          // keys of the own block that indices name
  float output_[kOutputs];      // half of the channels
  cuda::RowState state_;        // sums: of the thread's keys in own blocks, until add_up_sums()
  float most_[kRowsPerThread];  // the largest score in own blocks
  float largest_unit_ = 0;      // so far, where keys have units
};

}  // namespace fa3::hopper
