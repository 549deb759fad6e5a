// SPDX-License-Identifier: Apache-2.0
// What consumers of 16 or 32 query rows share: S^T of a block, its masks and softmax, and what
// becomes of a row at the end. Warp w has keys 16 w to 16 w + 15 of S^T. A lane has the same query
// rows in S^T and O^T, so references, sums and factors of rows stay in its registers; the block's
// maximum of a row goes through shared memory. Next: latent_finish.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentScores : protected LatentQueries<C, kWarpgroupSize> {
 protected:
  using Queries = LatentQueries<C, kWarpgroupSize>;
  using Queries::params_, Queries::tile_, Queries::first_row_, Queries::thread_;
  static constexpr int kRows = C.consumer_rows();
  static constexpr int kScores = kRows / 2;   // of a thread, of S^T or 64 channels of O^T
  static constexpr int kColumns = kRows / 4;  // query rows that a thread has

  struct Statistics {
    float most[kWarpsPerWarpgroup][kRows];
    float sums[kWarpsPerWarpgroup][kRows];
  };

  // consumer: which of the CTA's.
  __device__ __forceinline__ LatentScores(const LatentParams& params, Statistics& statistics,
                                          uint32_t q, int consumer, int thread)
      : Queries(params, q, thread),
        consumer_(consumer),
        warp_(int(uniform(thread / kWarpSize))),
        statistics_(statistics) {}

  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    tile_ = tile;
    first_row_ = first_row;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) ref_[c] = -kInfinity, sum_[c] = 0.0f;
  }

  // Named barrier of the warpgroup.
  __device__ __forceinline__ void sync() const {
    ptx::bar_sync(int(NamedBarrier::kRows) + consumer_, kWarpgroupSize);
  }

  // The query row, from `first_row_` on, of the thread's number c.
  __device__ __forceinline__ int row_of(int c) const {
    return c / 2 * 8 + ptx::lane() % kQuadLanes * 2 + c % 2;
  }
  // The first of the thread's two keys in the block; they are 8 apart.
  __device__ __forceinline__ int first_key() const {
    return warp_ * kRowsPerWarp + ptx::lane() / kQuadLanes;
  }
  static __device__ __forceinline__ float& score(float (&scores)[kScores], int c, int half) {
    return scores[c / 2 * 4 + half * 2 + c % 2];
  }

  // Whether indices name the thread's keys.
  __device__ __forceinline__ void look_up(int block, bool (&valid)[2]) const {
    valid[0] = valid[1] = true;
    if (!params_.problem.sparse) return;
    const SelectedKeys& keys = params_.problem.keys;
    const int32_t* const indices = keys.of(tile_.b, tile_.first_token);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block * kLatentBlockKeys + first_key() + half * kRowDistance;
      const int slot = key < tile_.keys ? __ldg(indices + key) : -1;
      valid[half] = slot >= 0 && slot / params_.page_size < keys.cache.pages;
    }
  }

  __device__ __forceinline__ void mask(float (&scores)[kScores], int block,
                                       const bool (&valid)[2]) const {
    const MlaProblem& p = params_.problem;
    const int first = block * kLatentBlockKeys;
    // The first row sees the fewest keys.
    const int hidden = p.causal ? tile_.tokens - 1 - first_row_ / params_.heads : 0;
    if (!p.sparse && first + kLatentBlockKeys <= tile_.keys - hidden) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      int end = tile_.keys;
      if (p.causal) end -= tile_.tokens - 1 - (first_row_ + row_of(c)) / params_.heads;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool sees = valid[half] && first + first_key() + half * kRowDistance < end;
        if (!sees) score(scores, c, half) = -kInfinity;
      }
    }
  }

  // The warp's maxima of rows, for all warps behind the next sync().
  __device__ __forceinline__ void tell_maxima(float (&scores)[kScores]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float most = fmaxf(score(scores, c, 0), score(scores, c, 1));
#pragma unroll
      for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
      }
      if (ptx::lane() / kQuadLanes == 0) statistics_.most[warp_][row_of(c)] = most;
    }
  }

  // Scores become P; what was summed before is to be multiplied by `factor`. Whether a reference
  // of the thread's rows has moved: most often none has.
  __device__ __forceinline__ bool softmax(float (&scores)[kScores], float (&factor)[kColumns]) {
    bool moved = false;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float most = statistics_.most[0][row_of(c)];
#pragma unroll
      for (int w = 1; w < kWarpsPerWarpgroup; ++w) {
        most = fmaxf(most, statistics_.most[w][row_of(c)]);
      }
      const float before = ref_[c], of_most = __fmul_rn(most, params_.scale_log2);
      const float ref = fmaxf(before, of_most);
      moved |= ref != before;
      factor[c] = ref == -kInfinity ? 1.0f : ex2(before - ref);
      ref_[c] = ref;
      float from = finite_reference(ref);
      if (is_large(from) && fabsf(most) < kInfinity) {  // see rebase_large_rows()
        from = ref - of_most;
#pragma unroll
        for (int half = 0; half < 2; ++half) score(scores, c, half) -= most;
      }
      float sum = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& s = score(scores, c, half);
        s = ex2(__fmaf_rn(s, params_.scale_log2, -from));
        sum += s;
      }
      sum_[c] = __fmaf_rn(sum_[c], factor[c], sum);
    }
    return moved;
  }

  // Where P lies as (query row, key): 8 x 8 matrices of S^T, transposed. The address of the lane's
  // row for stmatrix, for query rows from 8 n on.
  __device__ __forceinline__ uint32_t weights_offset(int n) const {
    constexpr tile::TileLayout kP{kRows, kLatentBlockKeys};
    const int matrix = ptx::lane() / 8, row = (n + matrix / 2) * 8 + ptx::lane() % 8;
    const int chunk = kP.swizzled_chunk(warp_ * 2 + matrix % 2, row);
    return uint32_t(row * kP.row_bytes() + chunk * tile::kChunkBytes);
  }

  // Over the thread's keys, then over all.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
        sum_[c] += __shfl_xor_sync(0xffffffff, sum_[c], distance);
      }
      if (ptx::lane() / kQuadLanes == 0) statistics_.sums[warp_][row_of(c)] = sum_[c];
    }
    sync();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      sum_[c] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarpsPerWarpgroup; ++w) sum_[c] += statistics_.sums[w][row_of(c)];
    }
  }

  // Stores the rows of a tile that has no other parts. store(to, c, factor) stores a row.
  template <class Store>
  __device__ __forceinline__ void store_results(const Store& store) const {
    const MlaProblem& p = params_.problem;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = first_row_ + row_of(c);
      if (row >= tile_.rows) continue;
      const ResultRow at = result_row(params_, tile_, row);
      const LatentSum sum{ref_[c], sum_[c]};
      const float factor = output_factor(p, sum, at.head);
      if (p.o.dtype == DType::float32) {
        store(p.o.at<float>(at.b, at.row, at.head), c, factor);
      } else {
        store(p.o.at<uint16_t>(at.b, at.row, at.head), c, factor);
      }
      if (warp_ == 0 && ptx::lane() / kQuadLanes == 0) store_statistics(p, sum, at);
    }
  }

  // Stores the part's results: rows from `first` on, in the order of all partial results.
  template <class Store>
  __device__ __forceinline__ void store_partial(int64_t first, const Store& store) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = first + row_of(c);
      if (first_row_ + row_of(c) >= tile_.rows) continue;
      store(params_.partial_o + at * kLatentValueDim, c, 1.0f);
      if (warp_ == 0 && ptx::lane() / kQuadLanes == 0) {
        params_.partial_sums[at] = {ref_[c], sum_[c]};
      }
    }
  }

  template <class T>
  static __device__ __forceinline__ T rounded(float x) {
    if constexpr (sizeof(T) == sizeof(float))
      return x;
    else
      return T(cuda::pack_pair<C.element>(x, 0.0f));
  }

  const int consumer_, warp_;
  float ref_[kColumns], sum_[kColumns];  // in log2 units; of the thread's keys until add_up_sums()

 private:
  Statistics& statistics_;
};

}  // namespace fa3::hopper
