// SPDX-License-Identifier: Apache-2.0
// What one of the two warpgroups computes. Of a block of keys: S and dP of 64 rows and half of the
// keys, then with P and dS of all keys half of dQ's channels, which stay in registers, and half of
// the channels of the keys' gradients, which it adds to the sums of the cache's rows.
#pragma once

#include "engine/cuda/backward/row_statistics.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/backward/latent_backward_smem.cuh"
#include "engine/hopper/latent/backward/selected_blocks.cuh"
#include "engine/hopper/latent/latent_finish.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

// A CTA's heads of one token. Found out where it is needed: registers are short.
struct GradientRows {
  int b, token;
  int first_head;
  int count;  // that exist

  __device__ __forceinline__ explicit GradientRows(const LatentBackwardParams& params) {
    const int of_all = int(blockIdx.x) / params.row_tiles;
    b = of_all / params.tokens;
    token = of_all - b * params.tokens;
    first_head = (int(blockIdx.x) - of_all * params.row_tiles) * kGradientRows;
    const int left = int(params.problem.heads) - first_head;
    count = left < kGradientRows ? left : kGradientRows;
  }
  __device__ __forceinline__ ResultRow at(int row) const {
    return {int64_t{b}, int64_t{token}, int64_t{first_head + row}};
  }
};

// Part: 0 or 1, the half of keys and of value channels. Rope channels are in part 0 of dQ and in
// part 1 of the keys' gradients, so both have as many products.
// Sums: FloatSums or IntegerSums.
template <int HeadDim, Element E, class Sums, int Part>
class LatentGradients {
  static constexpr bool kHasRope = HeadDim > kLatentValueDim;
  static constexpr int kSlabs = HeadDim / 64;
  static constexpr int kOwnValueSlabs = kGradientValueSlabs / 2;
  static constexpr int kQuerySlabs = kOwnValueSlabs + (kHasRope && Part == 0 ? 1 : 0);
  static constexpr int kKeySlabs = kOwnValueSlabs + (kHasRope && Part == 1 ? 1 : 0);
  static constexpr int kSteps = 4;  // products of 64 rows or channels
  static constexpr int kHalfKeys = kGradientKeys / 2;
  static constexpr int kScores = kHalfKeys / 2;  // of a thread
  static constexpr int kOfSlab = 32;             // sums of a thread
  static constexpr int kThreads = 2 * kWarpgroupSize;
  enum Barrier { kRowsReady = 1, kWeightsFree = 3, kWeightsReady = 5 };  // two numbers each

 public:
  using Smem = LatentBackwardSmem<HeadDim>;

  __device__ __forceinline__ LatentGradients(const LatentBackwardParams& params, Smem& smem)
      : params_(params), smem_(smem) {
    const GradientRows rows(params);
    load(rows, params.problem.q, ptx::cvta_to_shared(smem.q), HeadDim);
    load(rows, params.problem.d_o, ptx::cvta_to_shared(smem.d_o), kLatentValueDim);
    const int warp = Part * kWarpsPerWarpgroup + own_warp();
    for (int row = warp; row < kGradientRows; row += kThreads / kWarpSize) prepare(rows, row);
    ptx::cp_async_wait_all();
    ptx::fence_proxy_async();
    meet(kRowsReady);
#pragma unroll
    for (auto& slab : dq_) {
#pragma unroll
      for (float& x : slab) x = 0.0f;
    }
  }

  __device__ __forceinline__ void attend(const SelectedBlocks& blocks) {
    const uint32_t kv = ptx::cvta_to_shared(smem_.kv);
    ptx::mbarrier_wait_parity(pipeline().full(0), uint32_t(blocks_seen_++ & 1));
    ptx::fence_proxy_async();  // copies came through the generic proxy
    float s[kScores], dp[kScores];
    ptx::wgmma_fence();
    multiply_halves<kSlabs>(s, ptx::cvta_to_shared(smem_.q), kv);
    multiply_halves<kGradientValueSlabs>(dp, ptx::cvta_to_shared(smem_.d_o), kv);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    weigh(s, dp, blocks.named(Part));
    meet(kWeightsFree);
    store(ptx::cvta_to_shared(smem_.p), s);
    store(ptx::cvta_to_shared(smem_.ds), dp);
    ptx::fence_proxy_async();
    meet(kWeightsReady);
    ptx::wgmma_fence();
    multiply_queries(kv);
    ptx::wgmma_commit_group();
    // The keys' gradients need no keys: the loader brings the next ones meanwhile.
    float sums[kOfSlab];
    Sums rows[kRowsPerThread];
    const int first_key = fragment_row(own_thread()) % kWarpSize;
    const bool upper = own_warp() >= kWarpsPerWarpgroup / 2;
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int key = first_key + i * kRowDistance;
      rows[i] = Sums(params_, upper ? blocks.row_of(1, key) : blocks.row_of(0, key), HeadDim);
    }
#pragma unroll
    for (int i = 0; i < kKeySlabs; ++i) {
      ptx::wgmma_fence();
      multiply_keys(sums, slab_of(i));
      ptx::wgmma_commit_group();
      if (i == 0) {
        ptx::wgmma_wait_group<1>();
        if (leads_warp()) pipeline().release(0);
      }
      ptx::wgmma_wait_group<0>();
      add(sums, rows, slab_of(i));
    }
  }

  __device__ __forceinline__ void finish() const {
    const MlaBackwardProblem& p = params_.problem;
    const GradientRows of_cta(params_);
    const int thread = own_thread();
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int row = fragment_row(thread) + i * kRowDistance;
      if (row >= of_cta.count) continue;
      const ResultRow at = of_cta.at(row);
      if (p.dq.dtype == DType::float32) {
        store_row(p.dq.at<float>(at.b, at.row, at.head), i);
      } else {
        store_row(p.dq.at<uint16_t>(at.b, at.row, at.head), i);
      }
    }
    if (Part == 0 && p.dsink != nullptr && thread < of_cta.count) {
      store_sink(thread, of_cta.at(thread));
    }
  }

 private:
  // Each warpgroup waits at a barrier of its own: synccheck wants all that wait at one to be at the
  // same instruction, and the warpgroups' code is there twice.
  static __device__ __forceinline__ void meet(Barrier barrier) {
    ptx::bar_arrive(barrier + 1 - Part, kThreads);
    ptx::bar_sync(barrier + Part, kThreads);
  }
  // A number in the warpgroup, read where it is used: what follows from it would fill registers
  // through the whole loop.
  static __device__ __forceinline__ int own_thread() {
    return int(thread_in_block()) % kWarpgroupSize;
  }
  static __device__ __forceinline__ int own_warp() {
    return int(uniform(uint32_t(own_thread() / kWarpSize)));
  }
  __device__ __forceinline__ Pipeline<1> pipeline() const {
    return {ptx::cvta_to_shared(&smem_.barriers)};
  }
  // The slab of channels that is the warpgroup's number i.
  static __device__ __forceinline__ constexpr int slab_of(int i) {
    return i < kOwnValueSlabs ? Part * kOwnValueSlabs + i : kGradientValueSlabs;
  }

  // Rows that do not exist become zeros.
  __device__ __forceinline__ void load(const GradientRows& rows, const Operand& from, uint32_t to,
                                       int columns) const {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    constexpr int kChunkColumns = tile::kChunkBytes / 2;
    const int chunks = columns / kChunkColumns;
#pragma unroll 1
    for (int i = Part * kWarpgroupSize + own_thread(); i < kGradientRows * chunks; i += kThreads) {
      const int row = i / chunks, column = (i - row * chunks) * kChunkColumns;
      const bool exists = row < rows.count;
      const ResultRow at = rows.at(exists ? row : 0);
      const int chunk = kSlab.swizzled_chunk(column % 64 / kChunkColumns, row);
      ptx::cp_async_16(to + uint32_t(column / 64 * kGradientSlabBytes + row * kSlab.row_bytes() +
                                     chunk * tile::kChunkBytes),
                       from.at<uint16_t>(at.b, at.row, at.head) + column, exists);
    }
  }

  // A row's statistics, by a warp.
  __device__ __forceinline__ void prepare(const GradientRows& rows, int row) const {
    const MlaBackwardProblem& p = params_.problem;
    const bool exists = row < rows.count;
    const ResultRow at = rows.at(exists ? row : 0);
    float product = 0.0f;
#pragma unroll
    for (int i = 0; i < int(kLatentValueDim) / (kWarpSize * kVectorColumns); ++i) {
      const int column = (i * kWarpSize + ptx::lane()) * kVectorColumns;
      const auto vector = [&](const Operand& from) {
        return __ldg(
            reinterpret_cast<const uint4*>(from.at<uint16_t>(at.b, at.row, at.head) + column));
      };
      if (exists) product += dot<E>(vector(p.o), vector(p.d_o));
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      product += __shfl_xor_sync(0xffffffff, product, distance);
    }
    if (ptx::lane() != 0) return;
    const float lse = exists ? *at.of(p.lse) : kInfinity;
    const bool sees_nothing = lse == -kInfinity;
    const float share = p.sink == nullptr || p.lse_with_sink || !exists
                            ? 1.0f
                            : share_of_keys(p.sink[at.head], lse);
    // Where the LSE is -inf its gradient may be anything.
    const float d_lse = exists && !sees_nothing ? gradient_of_lse(at) : 0.0f;
    smem_.lse_log2[row] = sees_nothing ? 0.0f : lse * kLog2E;
    smem_.share[row] = share;
    smem_.product[row] = product;
    smem_.delta[row] = share * product - d_lse;
  }

  __device__ __forceinline__ float gradient_of_lse(const ResultRow& at) const {
    const RowScalars& d_lse = params_.problem.d_lse;
    return d_lse.data != nullptr ? *at.of(d_lse) : 0.0f;
  }

  // The keys' part of a softmax with the sink; lse: without it. 1 - sink_weight() has no digits
  // where the sink is far above.
  static __device__ __forceinline__ float share_of_keys(float sink, float lse) {
    if (isnan(sink)) return sink;
    if (isinf(sink)) return sink > 0 ? 0.0f : 1.0f;
    return 1.0f / (1.0f + expf(sink - lse));
  }

  // The sink's share of the softmax.
  __device__ __forceinline__ float sink_weight(float sink, float lse) const {
    if (isnan(sink)) return sink;
    if (isinf(sink)) return sink > 0 ? 1.0f : 0.0f;
    return params_.problem.lse_with_sink ? expf(sink - lse) : 1.0f / (1.0f + expf(lse - sink));
  }

  // d = A B^T of all 64 rows and the warpgroup's half of the keys.
  template <int Slabs>
  static __device__ __forceinline__ void multiply_halves(float (&d)[kScores], uint32_t a,
                                                         uint32_t kv) {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    const uint32_t b = kv + uint32_t(Part * kHalfKeys * kSlab.row_bytes());
#pragma unroll
    for (int slab = 0; slab < Slabs; ++slab) {
      const uint32_t left = tile::k_major_low(a + uint32_t(slab * kGradientSlabBytes));
      const uint32_t right = tile::k_major_low(b + uint32_t(slab * kGradientSlabBytes));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<E, Major::kK, Major::kK>(
            d, tile::descriptor(kSlab, left, kSlab.k_major_step(step)),
            tile::descriptor(kSlab, right, kSlab.k_major_step(step)), slab + step != 0);
      }
    }
  }

  // S becomes P and dP becomes dS, both times their factors.
  __device__ __forceinline__ void weigh(float (&s)[kScores], float (&dp)[kScores],
                                        uint32_t named) const {
    const float of_p = params_.weight_factor, of_ds = of_p * params_.problem.scale;
    const int thread = own_thread();
    float lse_log2[kRowsPerThread], share[kRowsPerThread], delta[kRowsPerThread];
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int row = fragment_row(thread) + i * kRowDistance;
      lse_log2[i] = smem_.lse_log2[row];
      share[i] = smem_.share[row];
      delta[i] = smem_.delta[row];
    }
    const uint32_t own = named >> fragment_lane_column(thread);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int row = fragment_row_index(i);
      const bool sees = own >> fragment_column(i) & 1;
      // At most 1, also where the LSE has been rounded. NaN stays.
      const float x = __fmaf_rn(s[i], params_.scale_log2, -lse_log2[row]);
      const float p = ex2(x > 0.0f ? 0.0f : x);
      const float ds = p * __fmaf_rn(share[row], dp[i], -delta[row]);
      s[i] = sees ? p * share[row] * of_p : 0.0f;
      dp[i] = sees ? ds * of_ds : 0.0f;
    }
  }

  // The warpgroup's half of a tile of rows by keys.
  __device__ __forceinline__ void store(uint32_t to, const float (&x)[kScores]) const {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    const tile::StoredPlace place = tile::stored_place(own_thread());
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = pack_pair<E>(x[n * 8 + i * 2], x[n * 8 + i * 2 + 1]);
      }
      const int key = Part * kHalfKeys + n * 16 + place.column;
      const int chunk = kSlab.swizzled_chunk(key / 8, place.row);
      ptx::stmatrix_x4(to + uint32_t(place.row * kSlab.row_bytes() + chunk * tile::kChunkBytes),
                       pairs);
    }
  }

  // dQ += dS K.
  __device__ __forceinline__ void multiply_queries(uint32_t kv) {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    const uint32_t ds = tile::k_major_low(ptx::cvta_to_shared(smem_.ds));
#pragma unroll
    for (int i = 0; i < kQuerySlabs; ++i) {
      const uint32_t k = tile::mn_major_low(kSlab, kv + uint32_t(slab_of(i) * kGradientSlabBytes));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<E, Major::kK, Major::kMn>(
            dq_[i], tile::descriptor(kSlab, ds, kSlab.k_major_step(step)),
            tile::descriptor(kSlab, k, kSlab.mn_major_step(step)), 1);
      }
    }
  }

  // dS^T Q + P^T dO of a slab of channels.
  __device__ __forceinline__ void multiply_keys(float (&sums)[kOfSlab], int slab) const {
    multiply_rows(sums, ptx::cvta_to_shared(smem_.ds), ptx::cvta_to_shared(smem_.q[slab]), false);
    if (slab < kGradientValueSlabs) {
      multiply_rows(sums, ptx::cvta_to_shared(smem_.p), ptx::cvta_to_shared(smem_.d_o[slab]), true);
    }
  }

  // d = A^T B or d += A^T B.
  static __device__ __forceinline__ void multiply_rows(float (&d)[kOfSlab], uint32_t a, uint32_t b,
                                                       bool adds) {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    const uint32_t left = tile::mn_major_low(kSlab, a), right = tile::mn_major_low(kSlab, b);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::wgmma_m64k16_ss<E, Major::kMn, Major::kMn>(
          d, tile::descriptor(kSlab, left, kSlab.mn_major_step(step)),
          tile::descriptor(kSlab, right, kSlab.mn_major_step(step)), adds || step != 0);
    }
  }

  __device__ __forceinline__ void add(const float (&sums)[kOfSlab],
                                      const Sums (&rows)[kRowsPerThread], int slab) const {
    const float factor = 1.0f / params_.weight_factor;
    const int lane = own_thread() % kQuadLanes;
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      if (rows[i].exists()) rows[i].add(sums + i * 2, slab * 64, lane, factor);
    }
  }

  template <class T>
  __device__ __forceinline__ void store_row(T* row, int i) const {
    const float factor = 1.0f / params_.weight_factor;
    const int lane_column = fragment_lane_column(own_thread());
#pragma unroll
    for (int slab = 0; slab < kQuerySlabs; ++slab) {
#pragma unroll
      for (int pair = 0; pair < kOfSlab / 4; ++pair) {
        const float first = dq_[slab][pair * 4 + i * 2] * factor;
        const float second = dq_[slab][pair * 4 + i * 2 + 1] * factor;
        T* const to = row + slab_of(slab) * 64 + pair * 8 + lane_column;
        if constexpr (sizeof(T) == 4) {
          *reinterpret_cast<float2*>(to) = {first, second};
        } else {
          *reinterpret_cast<uint32_t*>(to) = pack_pair<E>(first, second);
        }
      }
    }
  }

  // Minus the row's part of the sink's gradient. The sink has no value, so its dP is 0.
  __device__ __forceinline__ void store_sink(int row, const ResultRow& at) const {
    const MlaBackwardProblem& p = params_.problem;
    const float sink = p.sink[at.head];
    float delta = blocks_seen_ > 0 ? smem_.product[row] : 0.0f;
    if (p.lse_with_sink) delta -= gradient_of_lse(at);
    const float part = isinf(sink) ? 0.0f : sink_weight(sink, *at.of(p.lse)) * delta;
    params_.sink_sums[at.head * params_.all_tokens() + at.b * p.lengths_q.max + at.row] = part;
  }

  const LatentBackwardParams& params_;
  Smem& smem_;
  int blocks_seen_ = 0;
  float dq_[kQuerySlabs][kOfSlab];
};

}  // namespace fa3::hopper
