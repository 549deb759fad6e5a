// SPDX-License-Identifier: Apache-2.0
// One tile of scores as a warpgroup holds it, 64 keys by a block of queries, and what is done to
// it: P from S, dS from dP. Keys are the accumulator's rows, so the packed tile is the left operand
// of a product that sums over queries.
#pragma once

#include <type_traits>

#include "engine/cuda/dropout/dropout.cuh"
#include "engine/cuda/mask/mask.cuh"
#include "engine/cuda/softmax/softcap_score.cuh"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/unpack.cuh"
#include "engine/hopper/tile/gemm.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

// Kernels that drop nothing.
struct NoDropout {
  NoDropout() = default;
  __device__ __forceinline__ NoDropout(const DropoutParams&, int, uint32_t, int) {}
  __device__ __forceinline__ void draw(int, int, int) const {}
};

// Which weights of a warpgroup's 64 keys are dropped, for a step's queries, of which each warp
// draws 16 in 64, a step ahead: the generator is a long chain.
template <int BlockM>
class DrawnStep {
 public:
  static constexpr int kDraws = BlockM / (kWarpsPerWarpgroup * kDropoutQueries);  // a warp's
  static constexpr int kBytes = kDraws * KeyRowDropout::kBytes;

  __device__ __forceinline__ DrawnStep(const DropoutParams& params, int first_key, uint32_t smem,
                                       int barrier)
      : draws_(params, first_key), next_(smem), other_(smem + kBytes), barrier_(barrier) {}

  // The other warps may still read the bits of the step before.
  __device__ __forceinline__ void draw(int sequence, int head, int first_query) {
    const int thread = int(thread_in_block() % kWarpgroupSize);
    const int query = first_query + thread / kWarpSize * kDropoutQueries;
#pragma unroll
    for (int i = 0; i < kDraws; ++i) {
      ptx::st_shared_b32(next_ + i * KeyRowDropout::kBytes + thread * 4,
                         draws_.dropped_bits(sequence, head, query + i * kRowsPerWarpgroup));
    }
  }

  // Waits for all warps' bits and takes those of this warp's keys: a word for 16 queries each.
  __device__ __forceinline__ void exchange(uint32_t (&bits)[4 * kDraws]) {
    ptx::bar_sync(barrier_, kWarpgroupSize);
#pragma unroll
    for (int i = 0; i < kDraws; ++i) {
      ptx::ldmatrix_x4_trans(next_ + i * KeyRowDropout::kBytes + thread_in_block() % kWarpSize * 16,
                             reinterpret_cast<uint32_t(&)[4]>(bits[4 * i]));
    }
    const uint32_t drawn = next_;
    next_ = other_;
    other_ = drawn;
  }

  __device__ __forceinline__ static uint32_t signs(uint32_t bits, int reg) {
    return KeyRowDropout::signs(bits, int(thread_in_block() % kWarpgroupSize / kWarpSize), reg);
  }

  __device__ __forceinline__ float keeps() const {
    return draws_.keeps();
  }

 private:
  const KeyRowDropout draws_;
  uint32_t next_, other_;
  const int barrier_;
};

// What dV's sums are multiplied by.
template <BackwardConfig C>
__device__ __forceinline__ float value_scale(const BackwardParams& params) {
  if constexpr (C.dropout()) return params.dropout.scale;
  return 1.0f;
}

// Where a warpgroup's tile is, for a score function (function_tile.cuh).
struct TilePlace {
  int sequence;
  int head;
  int first_key;
  int first_query;
};

template <BackwardConfig C>
struct FunctionTile;

template <BackwardConfig C>
struct ScoreTile {
  static constexpr int kScores = C.shape.block_m / 2;      // a thread's
  static constexpr int kStatistics = C.shape.block_m / 4;  // a thread's queries
  static constexpr int kDepth = C.q_tile().mma_depth();
  static constexpr int kStepStatistics = kDepth / 4;
  static_assert(!C.dropout() || kDepth == kDropoutQueries);
  using Scores = float[kScores];
  using Packed = tile::PFragment<C.q_tile()>;
  using Statistics = float[kStatistics];
  using Dropped = uint32_t[C.shape.block_m / kDropoutQueries];  // bits of draws
  using Score =
      std::conditional_t<C.capped() && !cuda::kHasScoreFunction, SoftcapScore, ScaledScore>;
  using DropoutHook = std::conditional_t<C.dropout(), DrawnStep<C.shape.block_m>, NoDropout>;
  // The LSEs; or only their address, where P's other form leaves too few registers. Deltas
  // likewise.
  using Lse = std::conditional_t<C.stores_other_p(), uint32_t, Statistics>;
  using Delta = std::conditional_t<C.signs_p(), uint32_t, Statistics>;

  static __device__ __forceinline__ Score score_of(const BackwardParams& params) {
    if constexpr (C.capped() && !cuda::kHasScoreFunction) {
      return {{params.soft_cap}, params.per_cap};
    } else {
      return {params.scale_log2};
    }
  }

  // A number for each query of the thread: two neighbours in each 8.
  template <int Count>
  static __device__ __forceinline__ void read(float (&values)[Count], uint32_t row) {
    const uint32_t mine =
        row + fragment_lane_column(int(thread_in_block())) * uint32_t{sizeof(float)};
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      ptx::ld_shared_f32x2(mine + i * 8 * sizeof(float),
                           reinterpret_cast<float(&)[2]>(values[2 * i]));
    }
  }

  static __device__ __forceinline__ void read(uint32_t& later, uint32_t row) {
    later = row;
  }

  // Which of those numbers belongs to the query of score i.
  static __device__ __forceinline__ constexpr int query_index(int i) {
    return i / 4 * 2 + i % 2;
  }

  // Whether some query from first_row on must not see some key; `unmasked`: queries that see all.
  static __device__ __forceinline__ bool is_masked(KeyRangeOf<int> unmasked, int first_row) {
    return first_row < unmasked.begin ||
           (C.general() && first_row + C.shape.block_m > unmasked.end);
  }

  template <class Extents>
  static __device__ __forceinline__ void mask(Scores& scores, const Extents& extents, int first_key,
                                              int first_row) {
    mask_scores(scores, QueryEdge<Extents>{extents, first_key}, PackGqa{},
                int(thread_in_block() % kWarpgroupSize), first_row);
  }

  // S -> P = 2^(score - lse).
  static __device__ __forceinline__ void exponentiate(Scores& scores, const Statistics& lse,
                                                      ScaledScore score, uint32_t,
                                                      const DropoutHook&) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = bounded_p(score.exponent(scores[i], lse[query_index(i)]));
    }
  }

  // S -> P, and P's other form goes to shared memory, for differentiate(): times the softcap's
  // derivative, and negative where P is dropped.
  static __device__ __forceinline__ void exponentiate(Scores& scores, uint32_t lse_row,
                                                      const Score& score, uint32_t p_smem,
                                                      DropoutHook& dropout) {
    uint32_t dropped[C.shape.block_m / kDropoutQueries] = {};
    if constexpr (C.dropout()) dropout.exchange(dropped);
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      float lse[kStepStatistics];
      read(lse, lse_row + step * kDepth * uint32_t{sizeof(float)});
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float p[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = scores[8 * step + 2 * j + half];
          const float derivative = derivative_of(score, x);
          x = bounded_p(score.exponent(x, lse[query_index(2 * j + half)]));
          p[half] = x * derivative;
        }
        packed[j] = pack_pair<C.element>(p[0], p[1]);
        if constexpr (C.dropout()) {
          const uint32_t signs = DropoutHook::signs(dropped[step], j);
          packed[j] |= signs;
          if constexpr (C.capped()) sign_pair(&scores[8 * step + 2 * j], signs);
        }
      }
      ptx::st_shared_b32x4(packed_place(p_smem, step), packed);
    }
  }
  static __device__ __forceinline__ void sign_pair(float* p, uint32_t signs) {
    p[0] = __uint_as_float(__float_as_uint(p[0]) | (signs << 16));
    p[1] = __uint_as_float(__float_as_uint(p[1]) | (signs & 0x80000000u));
  }
  static __device__ __forceinline__ float derivative_of(const SoftcapScore& score, float x) {
    return score.derivative(x);
  }
  static __device__ __forceinline__ float derivative_of(ScaledScore, float) {
    return 1.0f;
  }

  // dP -> dS = P (dP - delta). With dropout P (dP m - (1 - p) delta), (1 - p) times that: what dK
  // and dQ are multiplied by has the rest.
  static __device__ __forceinline__ void differentiate(Scores& dp, const Packed& p,
                                                       const Statistics& delta,
                                                       const DropoutHook& dropout) {
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      differentiate(dp, step, p[step], &delta[step * kStepStatistics], dropout);
    }
  }
  // dP -> dS, with deltas from shared memory: beside signed P and dV's operand registers do not
  // last for them.
  static __device__ __forceinline__ void differentiate(Scores& dp, const Packed& p,
                                                       uint32_t delta_row,
                                                       const DropoutHook& dropout) {
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      float delta[kStepStatistics];
      read(delta, delta_row + step * kDepth * uint32_t{sizeof(float)});
      differentiate(dp, step, p[step], delta, dropout);
    }
  }
  // dP -> dS, from P as store_packed() or exponentiate() has left it.
  static __device__ __forceinline__ void differentiate(Scores& dp, uint32_t smem,
                                                       const Statistics& delta,
                                                       const DropoutHook& dropout) {
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      uint32_t p[4];
      ptx::ld_shared_b32x4(packed_place(smem, step), p);
      differentiate(dp, step, p, &delta[step * kStepStatistics], dropout);
    }
  }
  // The scores of kDepth queries.
  static __device__ __forceinline__ void differentiate(Scores& dp, int step, const uint32_t (&p)[4],
                                                       const float* delta,
                                                       const DropoutHook& dropout) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      float pair[2];
      ptx::unpack_pair<C.element>(p[i / 2], pair[0], pair[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = dp[8 * step + i + half];
        const float row_delta = delta[query_index(i + half)];
        if constexpr (C.dropout()) {
          const float kept = fmaxf(pair[half], 0.0f);
          x = __fmaf_rn(kept, x, -fabsf(pair[half]) * (row_delta * dropout.keeps()));
        } else {
          x = pair[half] * (x - row_delta);
        }
      }
    }
  }

  // P as dS needs it, where registers have it: with dropout negative where it is dropped.
  static __device__ __forceinline__ void pack_signed(Packed& packed, const Scores& p,
                                                     const Dropped& dropped) {
    pack(packed, p);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      packed[i / 4][i % 4] |= DropoutHook::signs(dropped[i / 4], i % 4);
    }
  }
  // Without what is dropped, the operand of dV's product.
  static __device__ __forceinline__ void keep_positive(Packed& packed, const Packed& of) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      packed[i / 4][i % 4] = positive_pair<C.element>(of[i / 4][i % 4]);
    }
  }

  // The operand of dV's product where exponentiate() has left P's other form at `smem`.
  static __device__ __forceinline__ void pack_kept(Packed& packed, const Scores& p, uint32_t smem) {
    if constexpr (C.dropout() && !C.capped()) {
      load_packed(packed, smem);
      keep_positive(packed, packed);
    } else if constexpr (C.dropout()) {
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        packed[i / 8][i / 2 % 4] = pack_positive_pair<C.element>(p[i], p[i + 1]);
      }
    } else {
      pack(packed, p);
    }
  }

  static __device__ __forceinline__ void pack(Packed& packed, const Scores& values) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      packed[i / 8][i / 2 % 4] = pack_pair<C.element>(values[i], values[i + 1]);
    }
  }

  // Into other registers, which the compiler must not merge with these: a product in flight reads
  // these, so the next one would wait for it. `zero` is 0, which the compiler does not know.
  static __device__ __forceinline__ void move(Packed& to, const Packed& from, uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i / 4][i % 4] = from[i / 4][i % 4] ^ zero;
  }

  // In registers' order, 16 bytes of each thread: for the same thread of another warpgroup.
  static __device__ __forceinline__ void store_packed(uint32_t smem, const Packed& packed) {
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      ptx::st_shared_b32x4(packed_place(smem, step), packed[step]);
    }
  }
  static __device__ __forceinline__ void load_packed(Packed& packed, uint32_t smem) {
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth; ++step) {
      ptx::ld_shared_b32x4(packed_place(smem, step), packed[step]);
    }
  }
  static __device__ __forceinline__ uint32_t packed_place(uint32_t smem, int step) {
    if constexpr (C.p_lies_in_ds()) {  // where the warp's dS will be, two chunks of each row
      const int thread = int(thread_in_block() % kWarpgroupSize);
      const int chunk = thread / kWarpSize * 2 + step % 2;
      return smem + C.ds_tile().chunk_offset(step / 2 * kWarpSize + thread % kWarpSize, chunk * 8);
    }
    return smem + (step * kWarpgroupSize + thread_in_block() % kWarpgroupSize) * 16;
  }

  // Transposed: a row in shared memory is a query, the warpgroup's keys begin at a column of it.
  static __device__ __forceinline__ void store_transposed(uint32_t smem, int first_column,
                                                          const Packed& packed) {
    const auto [query, key] =
        tile::stored_place_transposed(int(thread_in_block() % kWarpgroupSize));
    const uint32_t mine = smem + C.ds_tile().chunk_offset(query, first_column + key);
#pragma unroll
    for (int step = 0; step < C.shape.block_m / kDepth;
         ++step) {  // at the same place of the swizzle
      ptx::stmatrix_x4_trans(mine + step * kDepth * C.ds_tile().row_bytes(), packed[step]);
    }
  }
};

}  // namespace fa3::hopper
