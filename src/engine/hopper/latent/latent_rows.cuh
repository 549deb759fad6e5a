// SPDX-License-Identifier: Apache-2.0
// The consumer's warpgroup: what it computes of a tile's query rows and the blocks of keys that
// pass by. Warp w has keys 16 w to 16 w + 15 of S^T, and of every 64 channels those of O^T. A lane
// has the same query rows in both, so references, sums and factors of rows stay in its registers;
// the block's maximum of a row goes through shared memory. Next: latent_finish.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/ptx/wgmma_narrow.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentRows : LatentQueries<C, kWarpgroupSize> {
  using Queries = LatentQueries<C, kWarpgroupSize>;
  using Queries::params_, Queries::tile_, Queries::first_row_, Queries::q_, Queries::thread_;
  // A function that uses a member of one of these copies it first: nvcc has no members of a class's
  // constants in device code.
  static constexpr tile::TileLayout kSlabLayout{kLatentBlockKeys, kSlabChannels};
  static constexpr tile::TileLayout kQLayout{C.rows, kSlabChannels};
  static constexpr tile::TileLayout kPLayout{C.rows, kLatentBlockKeys};
  static constexpr int kSteps = kSlabChannels / 16;  // products of a slab
  static constexpr int kScores = C.rows / 2;         // of a thread, of S^T or a slab of O^T
  static constexpr int kColumns = C.rows / 4;        // query rows that a thread has

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char q[C.slabs()][C.slab_of_q_bytes()];
    alignas(kSmemAlignment) unsigned char p[C.weights()][kPLayout.bytes()];
    float most[kWarpsPerWarpgroup][C.rows];
    float sums[kWarpsPerWarpgroup][C.rows];
  };

  __device__ __forceinline__ LatentRows(const LatentParams& params, Smem& smem,
                                        const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                        uint32_t scales, int thread)
      : Queries(params, ptx::cvta_to_shared(smem.q), thread),
        smem_(smem),
        pipeline_(pipeline),
        stages_(stages),
        scales_(scales),
        p_(ptx::cvta_to_shared(smem.p)),
        warp_(int(uniform(thread / kWarpSize))) {}

  // Loads the tile's queries. Rows behind the last are zeros.
  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    tile_ = tile;
    first_row_ = first_row;
    this->load_queries();
    sync();
#pragma unroll
    for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
      for (float& o : output_[i]) o = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) ref_[c] = -kInfinity, sum_[c] = 0.0f;
  }

  __device__ __forceinline__ void attend(const LatentSegment& segment) {
    for (int block = segment.first; block < segment.end; ++block) attend(block);
  }

  // Stores the rows of a tile that has no other parts.
  __device__ __forceinline__ void finish() {
    add_up_sums();
    const MlaProblem& p = params_.problem;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = first_row_ + row_of(c);
      if (row >= tile_.rows) continue;
      const ResultRow at = result_row(params_, tile_, row);
      const LatentSum sum{ref_[c], sum_[c]};
      const float factor = output_factor(p, sum, at.head);
      if (p.o.dtype == DType::float32) {
        store_row(p.o.at<float>(at.b, at.row, at.head), c, factor, [](float x) { return x; });
      } else {
        store_row(p.o.at<uint16_t>(at.b, at.row, at.head), c, factor,
                  [](float x) { return uint16_t(cuda::pack_pair<C.element>(x, 0.0f)); });
      }
      if (warp_ == 0 && ptx::lane() / kQuadLanes == 0) store_statistics(p, sum, at);
    }
  }

  // Stores the part's results: rows from `first` on, in the order of all partial results.
  __device__ __forceinline__ void store_part(int64_t first) {
    add_up_sums();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = first + row_of(c);
      if (first_row_ + row_of(c) >= tile_.rows) continue;
      store_row(params_.partial_o + at * kLatentValueDim, c, 1.0f, [](float x) { return x; });
      if (warp_ == 0 && ptx::lane() / kQuadLanes == 0) {
        params_.partial_sums[at] = {ref_[c], sum_[c]};
      }
    }
  }

 private:
  __device__ __forceinline__ void attend(int block) {
    bool valid[2] = {true, true};
    if (params_.problem.sparse) look_up(block, valid);
    float scores[kScores];
    const uint32_t first_stage = uniform(at_.stage());
    KeyScales scales;
    if constexpr (C.is_group128) {
      pipeline_.wait_full(at_);
      load_scales(scales);
      multiply_groups(scores, first_stage, scales);
    } else {
      multiply_keys(scores, first_stage);
    }
    mask(scores, block, valid);
    softmax(scores, scales);
    multiply_values(first_stage);
  }

  // Named barrier of the warpgroup.
  __device__ __forceinline__ void sync() const {
    ptx::bar_sync(int(NamedBarrier::kRows), kWarpgroupSize);
  }

  // The query row, in the tile, of the thread's number c.
  __device__ __forceinline__ int row_of(int c) const {
    return c / 2 * 8 + ptx::lane() % kQuadLanes * 2 + c % 2;
  }
  // The first of the thread's two keys in the block; they are 8 apart.
  __device__ __forceinline__ int first_key() const {
    return warp_ * kRowsPerWarp + ptx::lane() / kQuadLanes;
  }

  // Whether indices name the thread's keys.
  __device__ __forceinline__ void look_up(int block, bool (&valid)[2]) const {
    const SelectedKeys& keys = params_.problem.keys;
    const int32_t* const indices = keys.of(tile_.b, tile_.first_token);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block * kLatentBlockKeys + first_key() + half * kRowDistance;
      const int slot = key < tile_.keys ? __ldg(indices + key) : -1;
      valid[half] = slot >= 0 && slot / params_.page_size < keys.cache.pages;
    }
  }

  // The scales of the thread's two keys, for each group of channels.
  struct KeyScales {
    float of[2][Group128::kGroups];
  };

  __device__ __forceinline__ void load_scales(KeyScales& scales) {
    const uint32_t slot = blocks_++ % Group128::kScaleSlots * uint32_t(kLatentBlockKeys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t key = slot + uint32_t(first_key() + half * kRowDistance);
      ptx::ld_shared_f32x4(scales_ + key * Group128::kScaleBytes, scales.of[half]);
    }
  }

  // S^T = K Q^T, some slabs at a time as they come.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], uint32_t first_stage) {
#pragma unroll
    for (int first = 0; first < C.slabs(); first += C.stage_slabs()) {
      multiply_slabs(scores, first_stage, first, C.stage_slabs(), first != 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }

  // S^T group by group, each multiplied by its scales; rope channels have none.
  __device__ __forceinline__ void multiply_groups(float (&scores)[kScores], uint32_t first_stage,
                                                  const KeyScales& scales) {
    constexpr int kOfGroup = Group128::kSlabsOfGroup;
    constexpr int kParts = (C.slabs() + kOfGroup - 1) / kOfGroup;
    float part[2][kScores];
#pragma unroll
    for (float& s : scores) s = 0.0f;
    const auto add = [&](int group) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const float scale = group < Group128::kGroups ? scales.of[i / 2 % 2][group] : 1.0f;
        scores[i] = __fmaf_rn(part[group % 2][i], scale, scores[i]);
      }
    };
#pragma unroll
    for (int group = 0; group < kParts; ++group) {
      const int first = group * kOfGroup;
      multiply_slabs(part[group % 2], first_stage, first,
                     C.slabs() - first < kOfGroup ? C.slabs() - first : kOfGroup, false);
      ptx::wgmma_commit_group();
      if (group == 0) continue;
      ptx::wgmma_wait_group<1>();
      add(group - 1);
    }
    ptx::wgmma_wait_group<0>();
    add(kParts - 1);
  }

  // d = or d += K Q^T over the channels of `count` slabs, which are waited for.
  __device__ __forceinline__ void multiply_slabs(float (&d)[kScores], uint32_t first_stage,
                                                 int first, int count, bool adds) {
    constexpr tile::TileLayout kSlab = kSlabLayout, kQ = kQLayout;
#pragma unroll
    for (int i = 0; i < count / C.stage_slabs(); ++i) {
      pipeline_.wait_full(at_);
      at_.advance();
    }
    ptx::fence_proxy_async();  // copies came through the generic proxy
    ptx::wgmma_fence();
#pragma unroll
    for (int slab = first; slab < first + count; ++slab) {
      const uint32_t k = tile::k_major_low(slab_address(first_stage, slab));
      const uint32_t q = tile::k_major_low(q_ + uint32_t(slab * C.slab_of_q_bytes()));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<C.element, Major::kK, Major::kK>(
            d, tile::descriptor(kSlab, k, kSlab.k_major_step(step)),
            tile::descriptor(kQ, q, kQ.k_major_step(step)), adds || slab != first || step != 0);
      }
    }
  }

  // Stage number `number` of a block, whose first is `first_stage`.
  static __device__ __forceinline__ uint32_t stage_of(uint32_t first_stage, int number) {
    const uint32_t stage = first_stage + uint32_t(number);
    return stage < uint32_t(C.stages()) ? stage : stage - uint32_t(C.stages());
  }
  __device__ __forceinline__ uint32_t slab_address(uint32_t first_stage, int slab) const {
    return stages_ + stage_of(first_stage, slab / C.stage_slabs()) * C.stage_bytes() +
           slab % C.stage_slabs() * kSlabBytes;
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
        if (!sees) scores[c / 2 * 4 + half * 2 + c % 2] = -kInfinity;
      }
    }
  }

  // Scores become P^T in shared memory; sums and O^T move to the new references.
  __device__ __forceinline__ void softmax(float (&scores)[kScores], const KeyScales& scales) {
    float most[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      most[c] = fmaxf(score(scores, c, 0), score(scores, c, 1));
#pragma unroll
      for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
        most[c] = fmaxf(most[c], __shfl_xor_sync(0xffffffff, most[c], distance));
      }
      if (ptx::lane() / kQuadLanes == 0) smem_.most[warp_][row_of(c)] = most[c];
    }
    sync();
    float factor[kColumns];
    bool moved = false;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int w = 0; w < kWarpsPerWarpgroup; ++w) {
        most[c] = fmaxf(most[c], smem_.most[w][row_of(c)]);
      }
      const float before = ref_[c], of_most = __fmul_rn(most[c], params_.scale_log2);
      const float ref = fmaxf(before, of_most);
      moved |= ref != before;
      factor[c] = ref == -kInfinity ? 1.0f : ex2(before - ref);
      ref_[c] = ref;
      float from = finite_reference(ref);
      if (is_large(from) && fabsf(most[c]) < kInfinity) {  // see rebase_large_rows()
        from = ref - of_most;
#pragma unroll
        for (int half = 0; half < 2; ++half) score(scores, c, half) -= most[c];
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
    store_weights(scores, scales);
    // References seldom move: most often the vote is all that is done.
    if (__any_sync(0xffffffff, moved)) {
#pragma unroll
      for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) output_[i][e] *= factor[e / 4 * 2 + e % 2];
      }
    }
    ptx::fence_proxy_async();
    sync();
  }

  static __device__ __forceinline__ float& score(float (&scores)[kScores], int c, int half) {
    return scores[c / 2 * 4 + half * 2 + c % 2];
  }

  // As (query row, key): 8 x 8 matrices of S^T, transposed. For values with scales, one P a group.
  __device__ __forceinline__ void store_weights(const float (&scores)[kScores],
                                                const KeyScales& scales) const {
    constexpr tile::TileLayout kP = kPLayout;
    const int matrix = ptx::lane() / 8, own_row = ptx::lane() % 8;
#pragma unroll
    for (int group = 0; group < C.weights(); ++group) {
#pragma unroll
      for (int n = 0; n < C.rows / 8; n += 2) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const s = scores + (n + i / 2) * 4 + i % 2 * 2;
          const float scale = C.is_group128 ? scales.of[i % 2][group] : 1.0f;
          pairs[i] = cuda::pack_pair<C.element>(s[0] * scale, s[1] * scale);
        }
        const int row = (n + matrix / 2) * 8 + own_row;
        const int chunk = kP.swizzled_chunk(warp_ * 2 + matrix % 2, row);
        ptx::stmatrix_x4_trans(
            p_ + uint32_t(group * kP.bytes() + row * kP.row_bytes() + chunk * tile::kChunkBytes),
            pairs);
      }
    }
  }

  // O^T += V^T P^T, 64 channels at a time.
  __device__ __forceinline__ void multiply_values(uint32_t first_stage) {
    constexpr tile::TileLayout kSlab = kSlabLayout, kP = kPLayout;
    constexpr int kSlabsOfWeights = kValueSlabs / C.weights();
    ptx::wgmma_fence();
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
      const uint32_t v = tile::mn_major_low(kSlab, slab_address(first_stage, slab));
      const uint32_t p = tile::k_major_low(p_ + uint32_t(slab / kSlabsOfWeights * kP.bytes()));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<C.element, Major::kMn, Major::kK>(
            output_[slab], tile::descriptor(kSlab, v, kSlab.mn_major_step(step)),
            tile::descriptor(kP, p, kP.k_major_step(step)), 1);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int stage = 0; stage < C.block_stages(); ++stage) {
      if (leads_warp()) pipeline_.release(stage_of(first_stage, stage));
    }
  }

  // Over the thread's keys, then over all.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int distance = kQuadLanes; distance < kWarpSize; distance *= 2) {
        sum_[c] += __shfl_xor_sync(0xffffffff, sum_[c], distance);
      }
      if (ptx::lane() / kQuadLanes == 0) smem_.sums[warp_][row_of(c)] = sum_[c];
    }
    sync();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      sum_[c] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarpsPerWarpgroup; ++w) sum_[c] += smem_.sums[w][row_of(c)];
    }
  }

  template <class T, class Round>
  __device__ __forceinline__ void store_row(T* to, int c, float factor, const Round& round) const {
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = output_[slab][c / 2 * 4 + half * 2 + c % 2] * factor;
        to[slab * kSlabChannels + first_key() + half * kRowDistance] = round(x);
      }
    }
  }

  Smem& smem_;
  const Pipeline<C.stages()> pipeline_;
  const uint32_t stages_, scales_, p_;
  const int warp_;
  PipelineState<C.stages()> at_;         // the next stage that is waited for
  uint32_t blocks_ = 0;                  // of keys with scales that have been attended to
  float output_[kValueSlabs][kScores];   // O^T
  float ref_[kColumns], sum_[kColumns];  // in log2 units; of the thread's keys until add_up_sums()
};

}  // namespace fa3::hopper
