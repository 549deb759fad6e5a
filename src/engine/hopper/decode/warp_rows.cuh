// SPDX-License-Identifier: Apache-2.0
// What a warp computes of a few query rows and the keys that pass by: S^T = K Q^T and O^T += V^T
// P^T by mma.sync, keys and channels as the left factor's rows, query rows as columns. So eight
// rows fill a product, a quantized cache becomes fp16 in the registers of the warp that multiplies
// it, and all that a query row has (reference, sum, factor of its sum) belongs to lanes that hold
// its column of S^T and of O^T. Of the 16 channels that a product sums over, a lane's are
// neighbours in memory: both factors agree on that order, which no sum feels. Next:
// decode_kernel.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/decode/stages.cuh"
#include "engine/hopper/fp8/rescale_queries.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

// A lane's share of a fragment of mma.sync: rows g and g + 8, of columns 2t and 2t + 1.
struct LanePlace {
  int group = ptx::lane() / kQuadLanes;   // g
  int thread = ptx::lane() % kQuadLanes;  // t
};

template <Kernel C>
class WarpRows {
  using Stages = DecodeStages<C>;

 public:
  __device__ __forceinline__ explicit WarpRows(const ForwardParams& params)
      : is_e5m2_(params.cache_is_e5m2) {}

  static constexpr int kColumnTiles = C.shape.block_m / 8;  // of query rows
  static constexpr int kChannelTiles = C.shape.head_dim_v / 16;
  static constexpr int kKeyTiles = Stages::kKeys / 16;

  // ---- The query rows ----

  // The channels of each row that the lane's chunks of K have. `row_at` gives where a row of Q
  // begins, or null.
  template <class RowAt>
  __device__ __forceinline__ void load_queries(const RowAt& row_at, int columns) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint16_t* const row = row_at(n * 8 + at_.group);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int column = (chunk * kQuadLanes + at_.thread) * kChunkChannels;
#pragma unroll
        for (int part = 0; part < kChunkChannels / 8; ++part) {
          uint32_t eight[4];
          load_global_if(row != nullptr && column + part * 8 < columns, row + column + part * 8,
                         eight);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            q_[chunk * kStepsOfChunk + part * 2 + i / 2][n][i % 2] = eight[i];
          }
        }
      }
    }
  }

  // From products to exponents of two.
  __device__ __forceinline__ void set_scale(float scale) {
    for (int n = 0; n < kColumnTiles; ++n) {
      for (int j = 0; j < 2; ++j) factor_[n][j] = scale;
    }
  }

  // bf16 becomes fp16, each row times a power of two (rescale_queries.cuh).
  __device__ __forceinline__ void rescale_queries() {
    if constexpr (C.types().rescales_queries()) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < kScoreSteps; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) largest = RowRescale::larger(largest, q_[i][n][j]);
        }
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 2));
        const RowRescale fit = RowRescale::of(largest);
#pragma unroll
        for (int i = 0; i < kScoreSteps; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) q_[i][n][j] = fit.applied(q_[i][n][j]);
        }
        for (int j = 0; j < 2; ++j) {
          const int owner = (2 * at_.thread + j) * kQuadLanes;
          const float inverse = __shfl_sync(0xffffffff, fit.inverse(), owner);
          // Not zero: masked scores are -inf.
          factor_[n][j] = fmaxf(factor_[n][j] * inverse, 0x1p-126f);
        }
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
        for (float& o : output_[i][n]) o = 0.0f;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) ref_[n][j] = -kInfinity, sum_[n][j] = 0.0f;
    }
  }

  // ---- A stage of keys ----

  __device__ __forceinline__ void multiply_keys(uint32_t k) {
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (float& s : scores_[m][n]) s = 0.0f;
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) {
        uint32_t rows[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::ld_shared_b32x4(k + chunk_offset<Stages::kK>(m * 16 + half * 8 + at_.group,
                                                            chunk * kQuadLanes, at_.thread),
                               rows[half]);
        }
#pragma unroll
        for (int step = 0; step < kStepsOfChunk; ++step) {
          uint32_t a[4];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if constexpr (kWidens) {
              ptx::dequantize(rows[half][step], is_e5m2_, a[half], a[half + 2]);
            } else {
              a[half] = rows[half][2 * step], a[half + 2] = rows[half][2 * step + 1];
            }
          }
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
            mma_m16n8k16<C.types().product>(scores_[m][n], a, q_[chunk * kStepsOfChunk + step][n]);
          }
        }
      }
    }
  }

  // Keys from end_of(row) on are hidden from a row, counted like `first`, the stage's first.
  template <class EndOf>
  __device__ __forceinline__ void mask(int first, const EndOf& end_of) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int end = end_of(n * 8 + 2 * at_.thread + j) - first - at_.group;
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (m * 16 + half * 8 >= end) scores_[m][n][half * 2 + j] = -kInfinity;
          }
        }
      }
    }
  }

  // ---- For a score function: a lane's scores one by one ----

  static constexpr int kScores = kKeyTiles * kColumnTiles * 4;

  // The query row of the lane's i-th score, and its key among those of the stage.
  __device__ __forceinline__ int row_of(int i) const {
    return i / 4 % kColumnTiles * 8 + 2 * at_.thread + i % 2;
  }
  __device__ __forceinline__ int key_of(int i) const {
    return i / (4 * kColumnTiles) * 16 + i / 2 % 2 * 8 + at_.group;
  }
  // From a product to the natural score that the function is given. What it returns is one, too.
  __device__ __forceinline__ float natural_score(int i) const {
    return scores_[i / (4 * kColumnTiles)][i / 4 % kColumnTiles][i % 4] *
           factor_[i / 4 % kColumnTiles][i % 2];
  }
  __device__ __forceinline__ void set_score(int i, float score) {
    scores_[i / (4 * kColumnTiles)][i / 4 % kColumnTiles][i % 4] = score;
  }

  // ---- The largest natural score of each row, of the lane's keys; then of the warp's ----

  __device__ __forceinline__ void forget_largest() {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) largest_[n][0] = largest_[n][1] = -kInfinity;
  }
  __device__ __forceinline__ void see_largest() {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float most = max_nan(scores_[0][n][j], scores_[0][n][j + 2]);
#pragma unroll
        for (int m = 1; m < kKeyTiles; ++m) {
          most = max_nan(most, max_nan(scores_[m][n][j], scores_[m][n][j + 2]));
        }
        largest_[n][j] = max_nan(largest_[n][j], most * (factor_[n][j] * kLn2));
      }
    }
  }
  // `at(row)`: the number that the row raises; null: there is no such row.
  template <class At>
  __device__ __forceinline__ void raise_largest(const At& at) const {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float most = largest_[n][j];
#pragma unroll
        for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
          most = max_nan(most, __shfl_xor_sync(0xffffffff, most, distance));
        }
        float* const to = at(n * 8 + 2 * at_.thread + j);
        if (at_.group == 0 && to != nullptr && most != -kInfinity) raise_to(to, most);
      }
    }
  }

  // Online softmax: scores become P, the sums and the output move to the new references.
  __device__ __forceinline__ void softmax() {
    float factor[kColumnTiles][2];
    bool moved = false;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float most = scores_[0][n][j];
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m) {
          most = fmaxf(most, fmaxf(scores_[m][n][j], scores_[m][n][j + 2]));
        }
#pragma unroll
        for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
          most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
        }
        const float to_log2 = kHasScoreFunction ? kLog2E : factor_[n][j];
        const float before = ref_[n][j], of_most = __fmul_rn(most, to_log2),
                    ref = fmaxf(before, of_most);
        moved |= ref != before;
        factor[n][j] = ref == -kInfinity ? 1.0f : ex2(before - ref);
        ref_[n][j] = ref;
        float from = finite_reference(ref);
        if (is_large(from) && fabsf(most) < kInfinity) {  // as rebase_large_rows()
          from = ref - of_most;
#pragma unroll
          for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
            for (int i = j; i < 4; i += 2) scores_[m][n][i] -= most;
          }
        }
        float sum = 0.0f;
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
          for (int i = j; i < 4; i += 2) {
            float& s = scores_[m][n][i];
            s = ex2(__fmaf_rn(s, to_log2, -from));
            sum += s;
          }
        }
        sum_[n][j] = __fmaf_rn(sum_[n][j], factor[n][j], sum);
      }
    }
    // Most often nothing moves: then a vote is all.
    if (!__any_sync(0xffffffff, moved)) return;
#pragma unroll
    for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) output_[i][n][e] *= factor[n][e % 2];
      }
    }
  }

  __device__ __forceinline__ void multiply_values(uint32_t v) {
    const int matrix = ptx::lane() / 8, own_row = ptx::lane() % 8;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
      uint32_t p[kColumnTiles][2];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          p[n][half] = transposed(
              pack_pair<C.types().product>(scores_[m][n][2 * half], scores_[m][n][2 * half + 1]));
        }
      }
      // A matrix has 16 channels of eight keys in 8 bits, else eight.
      constexpr int kTilesAtOnce = kWidens ? 2 : 1;
#pragma unroll
      for (int i = 0; i < kChannelTiles; i += kTilesAtOnce) {
        const int half = kWidens ? matrix % 2 : matrix / 2;  // of the keys
        const int chunk = kWidens ? i : 2 * i, more = kWidens ? matrix / 2 : matrix % 2;
        uint32_t read[4];
        ptx::ldmatrix_x4_trans(
            v + chunk_offset<Stages::kV>(m * 16 + half * 8 + own_row, chunk, more), read);
#pragma unroll
        for (int tile = 0; tile < kTilesAtOnce; ++tile) {
          uint32_t a[4];
          if constexpr (kWidens) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              // Two keys of channel 2g, then of 2g + 1.
              ptx::dequantize(__byte_perm(read[tile * 2 + h], 0, 0x3120), is_e5m2_, a[2 * h],
                              a[2 * h + 1]);
            }
          } else {
#pragma unroll
            for (int r = 0; r < 4; ++r) a[r] = read[r];
          }
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
            mma_m16n8k16<C.types().product>(output_[i + tile][n], a, p[n]);
          }
        }
      }
    }
  }

  // ---- The results ----

  // As (rows, kPartialStride) floats: O, not normalised, then reference and sum.
  static constexpr int kPartialStride = C.shape.head_dim_v + 4;
  __device__ __forceinline__ void store(float* part) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = n * 8 + 2 * at_.thread + j;
#pragma unroll
        for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
          sum_[n][j] += __shfl_xor_sync(0xffffffff, sum_[n][j], distance);
        }
        float* const to = part + row * kPartialStride;
        if (at_.group == 0) {
          *reinterpret_cast<float2*>(to + C.shape.head_dim_v) = {ref_[n][j], sum_[n][j]};
        }
#pragma unroll
        for (int i = 0; i < kChannelTiles; ++i) {
          const float first = output_[i][n][j], second = output_[i][n][j + 2];
          if constexpr (kWidens) {
            *reinterpret_cast<float2*>(to + i * 16 + at_.group * 2) = {first, second};
          } else {
            to[i * 16 + at_.group] = first;
            to[i * 16 + at_.group + 8] = second;
          }
        }
      }
    }
  }

 private:
  static constexpr bool kWidens = C.dequantizes();
  static constexpr int kChunkChannels = tile::kChunkBytes / bytes_of(C.types().stored);
  static constexpr int kChunks = C.shape.head_dim / (kQuadLanes * kChunkChannels);  // of a lane
  static constexpr int kStepsOfChunk = kChunkChannels / 4;  // products of 16 channels
  static constexpr int kScoreSteps = kChunks * kStepsOfChunk;

  const LanePlace at_{};
  const bool is_e5m2_;  // a quantized cache; else e4m3
  uint32_t q_[kScoreSteps][kColumnTiles][2];
  float scores_[kKeyTiles][kColumnTiles][4];      // S^T, then P^T
  float output_[kChannelTiles][kColumnTiles][4];  // O^T
  float factor_[kColumnTiles][2];  // from products to exponents of two; of the lane's query rows
  float ref_[kColumnTiles][2], sum_[kColumnTiles][2];  // the sum: of the lane's keys
  float largest_[kColumnTiles][2];  // natural scores; of kernels that find the largest
};

}  // namespace fa3::hopper
