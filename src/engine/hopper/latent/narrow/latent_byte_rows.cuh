// SPDX-License-Identifier: Apache-2.0
// A consumer's warpgroup for rows of 656 bytes (Group128): 16 query rows. Keys and values are the A
// operand of both products, so e4m3 becomes fp16 in registers on its way to them: exactly, half an
// instruction a number, and no copy of 16 bits goes through shared memory. The scales of a key
// multiply its scores and its P, once for each group of 128 channels.
//
// The operands B are in fp16 too. A query row is multiplied by a power of two, and its scores by
// the inverse (latent_byte_queries.cuh). P times the scale of a group is multiplied by the power of
// two that brings the largest scale so far to 2^14..2^15: 11 bits where that product is 2^-29 of
// the largest scale, or more.
//
// CTAs of 16 rows: both consumers have the same query rows, and take blocks in turn; at the end the
// second one gives its sums to the first. Of 32 rows: each has 16, and reads all blocks.
//
// Which channel or key stands where in a product is free, if A and B agree: a lane reads words that
// lie in other banks than those of its neighbours. In S^T lane 4 r + j has keys r and r + 8 of the
// warp's 16, and of 32 words (128 channels of e4m3, 64 of bf16) those from first_word() on. In O^T
// it has four neighbouring channels of each group, and of 16 keys 2 j, 2 j + 1 and those 8 behind.
// Next: latent_scores.cuh.
#pragma once

#include "engine/hopper/latent/narrow/latent_byte_queries.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/e4m3.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/ptx/wgmma_narrow.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentByteRows : LatentByteQueries<C> {
  using Queries = LatentByteQueries<C>;
  using Scores = LatentScores<C>;
  using Queries::kHasRope, Queries::kQLayout;
  using Scores::consumer_, Scores::warp_, Scores::ref_, Scores::sum_;
  using Scores::kColumns, Scores::kRows, Scores::kScores;
  using Scores::params_, Scores::q_, Scores::thread_, Scores::tile_, Scores::first_row_;
  static constexpr bool kTakesTurns = C.rows == kRows;
  static constexpr int kGroups = Group128::kGroups, kRowBytes = Group128::kRowBytes;
  static constexpr int kSteps = Group128::kGroupChannels / 16;  // products of a group's channels
  static constexpr int kKeySteps = kLatentBlockKeys / 16;
  static constexpr tile::TileLayout kPLayout{kRows, kLatentBlockKeys};
  static constexpr int kQBytes = C.slabs() * C.slab_of_q_bytes();
  static constexpr int kOperandBytes = kQBytes + kGroups * kPLayout.bytes();

  // A's registers for the products of 128 channels, or of 128 values and all keys.
  using Fragments = uint32_t[kSteps][4];
  static constexpr int kTopOfScales = 14;
  static constexpr int kLeastExponent = kTopOfScales + 1;  // the power that undoes it is normal

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char operands[2][kOperandBytes];  // Q, P of each group
    typename Scores::Statistics statistics[2];
    int exponents[2][kWarpsPerWarpgroup][kGroups];  // of the largest scales of a warp's keys
    float q_factors[2][kRows];
  };

  // thread: of both consumers.
  __device__ __forceinline__ LatentByteRows(const LatentParams& params, Smem& smem,
                                            const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                            int thread)
      : LatentByteRows(params, smem, pipeline, stages, thread % kWarpgroupSize,
                       int(uniform_stage(uint32_t(thread / kWarpgroupSize)))) {}

  // Loads the tile's queries. Rows behind the last are zeros.
  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    Scores::start(tile, first_row + (kTakesTurns ? 0 : consumer_ * kRows));
    this->load_queries([this](int row, float factor) { smem_.q_factors[consumer_][row] = factor; });
    this->sync();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) q_factor_[c] = smem_.q_factors[consumer_][this->row_of(c)];
#pragma unroll
    for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
      for (float& o : output_[i]) o = 0.0f;
    }
#pragma unroll
    for (int& exponent : exponent_) exponent = kLeastExponent;
  }

  __device__ __forceinline__ void attend(const LatentSegment& segment) {
    for (int block = segment.first; block < segment.end; ++block) {
      !kTakesTurns || (block - segment.first) % 2 == consumer_ ? attend(block) : pass();
      at_.advance();
    }
    this->add_up_sums();
#pragma unroll
    for (int i = 0; i < kValueSlabs; ++i) {
      const float factor = power_of_two(exponent_[i / 2] - kTopOfScales);
#pragma unroll
      for (float& o : output_[i]) o *= factor;
    }
    if (kTakesTurns && segment.end - segment.first > 1) join();
  }

  __device__ __forceinline__ void finish() const {
    if (!stores()) return;
    this->store_results([this](auto* to, int c, float factor) { store_row(to, c, factor); });
  }
  __device__ __forceinline__ void store_part(int64_t first) const {
    if (!stores()) return;
    this->store_partial(first + (kTakesTurns ? 0 : consumer_ * kRows),
                        [this](auto* to, int c, float factor) { store_row(to, c, factor); });
  }

 private:
  __device__ __forceinline__ LatentByteRows(const LatentParams& params, Smem& smem,
                                            const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                            int thread, int consumer)
      : Queries(params, smem.statistics[consumer],
                ptx::cvta_to_shared(smem.operands) + uint32_t(consumer * kOperandBytes), consumer,
                thread),
        smem_(smem),
        pipeline_(pipeline),
        stages_(stages),
        p_(q_ + kQBytes) {}

  __device__ __forceinline__ bool stores() const {
    return !kTakesTurns || consumer_ == 0;
  }

  // ---- A block ----

  // The other consumer's block. Waiting for it and releasing it keeps this consumer within a lap of
  // the ring, also where segments have one block and it gets none.
  __device__ __forceinline__ void pass() const {
    pipeline_.wait_full(at_);
    __syncwarp();
    if (leads_warp()) pipeline_.release(at_.stage());
  }

  __device__ __forceinline__ void attend(int block) {
    bool valid[2];
    this->look_up(block, valid);
    const uint32_t stage = uniform(at_.stage());
    pipeline_.wait_full(at_);
    const uint32_t rows = stages_ + stage * uint32_t(C.stage_bytes());
    float scales[2][kGroups], scores[kScores];
    load_scales(rows, scales);
    multiply_keys(scores, rows, scales);
    this->mask(scores, block, valid);
    this->tell_maxima(scores);
    tell_exponents(scales);
    uint32_t words[kKeySteps][4];
    load_values(words, rows, 0);
    this->sync();
    float factor[kColumns], group_factor[kGroups];
    bool moved = this->softmax(scores, factor);
    moved |= move_exponents(group_factor);
    store_weights(scores, scales);
    if (__any_sync(0xffffffff, moved)) {
#pragma unroll
      for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) {
          output_[i][e] *= factor[e / 4 * 2 + e % 2] * group_factor[i / 2];
        }
      }
    }
    ptx::fence_proxy_async();
    this->sync();
    multiply_values(words, rows, stage);
  }

  // Loads the scales of the thread's two keys.
  __device__ __forceinline__ void load_scales(uint32_t rows, float (&scales)[2][kGroups]) const {
    const uint32_t at = rows + uint32_t(this->first_key() * kRowBytes + Group128::kScaleOffset);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::ld_shared_f32x4(at + uint32_t(half * kRowDistance * kRowBytes), scales[half]);
    }
  }

  // S^T group by group, each multiplied by its scales. The next group's bytes are read before a
  // group's products are issued.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], uint32_t rows,
                                                const float (&scales)[2][kGroups]) {
    constexpr tile::TileLayout kQ = kQLayout;
    constexpr int kSlabSteps = kSlabChannels / 16;
    const uint32_t at = rows + uint32_t(this->first_key() * kRowBytes) + first_word();
    uint32_t words[2][kSteps];
    Fragments a[2];
    float part[2][kScores];
#pragma unroll
    for (float& s : scores) s = 0.0f;
    const auto add = [&](int group) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        scores[i] = __fmaf_rn(part[group % 2][i], scales[i / 2 % 2][group], scores[i]);
      }
    };
    const auto multiply = [&]<Element E>(int group, int steps) {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        const int slab = (group * kSteps + step) / kSlabSteps;
        const uint32_t q = tile::k_major_low(q_ + uint32_t(slab * C.slab_of_q_bytes()));
        ptx::wgmma_m64k16_rs<E, Major::kK>(
            part[group % 2], a[group % 2][step],
            tile::descriptor(kQ, q, kQ.k_major_step(step % kSlabSteps)), step != 0);
      }
      ptx::wgmma_commit_group();
    };
    load_words(words, at);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group >= 2) {
        ptx::wgmma_wait_group<1>();
        add(group - 2);
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t(&to)[4] = a[group % 2][step];
        ptx::e4m3_to_f16(words[0][step], to[0], to[2]);
        ptx::e4m3_to_f16(words[1][step], to[1], to[3]);
      }
      if (group + 1 < kGroups) {
        load_words(words, at + uint32_t((group + 1) * Group128::kGroupChannels));
      } else if (kHasRope) {
        load_words(words, at + Group128::kRopeOffset);
      }
      multiply.template operator()<Element::kFp16>(group, kSteps);
    }
    ptx::wgmma_wait_group<1>();
    add(kGroups - 2);
    if constexpr (kHasRope) {
#pragma unroll
      for (int step = 0; step < kSlabSteps; ++step) {
        a[0][step][0] = words[0][2 * step], a[0][step][2] = words[0][2 * step + 1];
        a[0][step][1] = words[1][2 * step], a[0][step][3] = words[1][2 * step + 1];
      }
      multiply.template operator()<Element::kBf16>(kGroups, kSlabSteps);
      ptx::wgmma_wait_group<1>();
    }
    ptx::wgmma_wait_group<0>();
    add(kGroups - 1);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float rope = kHasRope ? part[0][i] : 0.0f;
      scores[i] = __fmaf_rn(scores[i], q_factor_[i / 4 * 2 + i % 2], rope);
    }
  }

  // Where a lane's words of a key begin: lanes that read at once have different banks.
  static __device__ __forceinline__ uint32_t first_word() {
    const int j = ptx::lane() % kQuadLanes;
    return uint32_t((j / 2 * 16 + j % 2 * 2) * 4);
  }

  // Loads eight of 32 words of each of the thread's two keys.
  static __device__ __forceinline__ void load_words(uint32_t (&words)[2][kSteps], uint32_t at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        uint32_t pair[2];
        ptx::ld_shared_b32x2(at + uint32_t(half * kRowDistance * kRowBytes + i * 8), pair);
        words[half][i] = pair[0], words[half][i + 1] = pair[1];
      }
    }
  }

  // ---- Scales of P ----

  // The exponents of the warp's largest scales, for all warps behind the next sync(). Scales that
  // are not finite have none.
  __device__ __forceinline__ void tell_exponents(const float (&scales)[2][kGroups]) const {
    int most[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      most[group] = __reduce_max_sync(
          0xffffffff, max(exponent_of(scales[0][group]), exponent_of(scales[1][group])));
    }
    if (ptx::lane() == 0) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        smem_.exponents[consumer_][warp_][group] = most[group];
      }
    }
  }
  static __device__ __forceinline__ int exponent_of(float scale) {
    constexpr int kNotFinite = 255;
    const int exponent = int(__float_as_uint(scale) >> kMantissaBits & 0xff);
    return exponent == kNotFinite ? 0 : exponent;
  }

  // Whether an exponent has grown, and what sums of its group are multiplied by.
  __device__ __forceinline__ bool move_exponents(float (&factor)[kGroups]) {
    bool moved = false;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      int most = exponent_[group];
#pragma unroll
      for (int w = 0; w < kWarpsPerWarpgroup; ++w) {
        most = max(most, smem_.exponents[consumer_][w][group]);
      }
      moved |= most != exponent_[group];
      factor[group] = ex2(float(exponent_[group] - most));
      exponent_[group] = most;
    }
    return moved;
  }

  // P times the scales of each group.
  __device__ __forceinline__ void store_weights(const float (&scores)[kScores],
                                                const float (&scales)[2][kGroups]) const {
    constexpr tile::TileLayout kP = kPLayout;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float to_top = power_of_two(2 * kExponentBias + kTopOfScales - exponent_[group]);
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = scales[i % 2][group] * to_top;
        pairs[i] =
            cuda::pack_pair<Element::kFp16>(scores[2 * i] * scale, scores[2 * i + 1] * scale);
      }
      ptx::stmatrix_x4_trans(p_ + uint32_t(group * kP.bytes()) + this->weights_offset(0), pairs);
    }
  }

  // ---- O^T += V^T P^T, 128 channels at a time ----

  // words: those of the first group. Releases the stage.
  __device__ __forceinline__ void multiply_values(uint32_t (&words)[kKeySteps][4], uint32_t rows,
                                                  uint32_t stage) {
    constexpr tile::TileLayout kP = kPLayout;
    Fragments a[2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group >= 2) ptx::wgmma_wait_group<1>();
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) {
        const uint32_t(&keys)[4] = words[step];
        uint32_t(&first)[4] = a[group % 2][step];
        uint32_t(&second)[4] = a[group % 2][kKeySteps + step];
#pragma unroll
        for (int last = 0; last < 2; ++last) {
          const uint32_t low = keys[2 * last], high = keys[2 * last + 1];
          ptx::e4m3_to_f16(__byte_perm(low, high, 0x5140), first[2 * last], first[2 * last + 1]);
          ptx::e4m3_to_f16(__byte_perm(low, high, 0x7362), second[2 * last], second[2 * last + 1]);
        }
      }
      if (group + 1 < kGroups) {
        load_values(words, rows, group + 1);
      } else {
        __syncwarp();
        if (leads_warp()) pipeline_.release(stage);
      }
      ptx::wgmma_fence();
      const uint32_t p = tile::k_major_low(p_ + uint32_t(group * kP.bytes()));
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
#pragma unroll
        for (int step = 0; step < kKeySteps; ++step) {
          ptx::wgmma_m64k16_rs<Element::kFp16, Major::kK>(
              output_[2 * group + slab], a[group % 2][slab * kKeySteps + step],
              tile::descriptor(kP, p, kP.k_major_step(step)), 1);
        }
      }
      ptx::wgmma_commit_group();
    }
    ptx::wgmma_wait_group<0>();
  }

  // The first of four neighbouring channels that the thread has of a group.
  __device__ __forceinline__ int first_channel(int group) const {
    constexpr int kWarpChannels = Group128::kGroupChannels / kWarpsPerWarpgroup;
    return group * Group128::kGroupChannels + warp_ * kWarpChannels + ptx::lane() / kQuadLanes * 4;
  }

  __device__ __forceinline__ void load_values(uint32_t (&words)[kKeySteps][4], uint32_t rows,
                                              int group) const {
    const int key = ptx::lane() % kQuadLanes * 2;
    const uint32_t at = rows + uint32_t(key * kRowBytes + first_channel(group));
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of = step * 16 + i / 2 * 8 + i % 2;
        words[step][i] = ptx::ld_shared_b32(at + uint32_t(of * kRowBytes));
      }
    }
  }

  // ---- Results ----

  // The second consumer's sums join the first one's, by what takes the place of Q and P.
  __device__ __forceinline__ void join() {
    constexpr int kBarrier = int(NamedBarrier::kHelpers), kThreads = C.consumer_threads();
    constexpr uint32_t kDistance = kWarpgroupSize * 16;
    static_assert((kValueSlabs * kScores / 4 + 2) * kDistance <= sizeof(Smem::operands));
    const uint32_t at = ptx::cvta_to_shared(smem_.operands) + uint32_t(thread_) * 16;
    ptx::bar_sync(kBarrier, kThreads);
    if (consumer_ == 1) {
#pragma unroll
      for (int i = 0; i < kValueSlabs * 2; ++i) {
        const float* const four = output_[i / 2] + i % 2 * 4;
        ptx::st_shared_f32x4(at + uint32_t(i) * kDistance, {four[0], four[1], four[2], four[3]});
      }
      ptx::st_shared_f32x4(at + kValueSlabs * 2 * kDistance, ref_);
      ptx::st_shared_f32x4(at + (kValueSlabs * 2 + 1) * kDistance, sum_);
    }
    ptx::bar_sync(kBarrier, kThreads);
    if (consumer_ == 0) {
      float ref[kColumns], sum[kColumns], own[kColumns], other[kColumns];
      ptx::ld_shared_f32x4(at + kValueSlabs * 2 * kDistance, ref);
      ptx::ld_shared_f32x4(at + (kValueSlabs * 2 + 1) * kDistance, sum);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float most = fmaxf(ref_[c], ref[c]), from = finite_reference(most);
        // 0 leaves out the sums of keys that the row does not see, whatever they are.
        own[c] = sum_[c] == 0 ? 0.0f : ex2(ref_[c] - from);
        other[c] = sum[c] == 0 ? 0.0f : ex2(ref[c] - from);
        ref_[c] = most;
        sum_[c] =
            (sum_[c] == 0 ? 0.0f : own[c] * sum_[c]) + (sum[c] == 0 ? 0.0f : other[c] * sum[c]);
      }
#pragma unroll
      for (int i = 0; i < kValueSlabs * 2; ++i) {
        float theirs[4];
        ptx::ld_shared_f32x4(at + uint32_t(i) * kDistance, theirs);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = i % 2 * 2 + e % 2;
          float& o = output_[i / 2][i % 2 * 4 + e];
          o = (own[c] == 0 ? 0.0f : own[c] * o) + (other[c] == 0 ? 0.0f : other[c] * theirs[e]);
        }
      }
    }
    ptx::bar_sync(kBarrier, kThreads);
  }

  // Four channels at once, unless the caller's rows begin elsewhere.
  template <class T>
  __device__ __forceinline__ void store_row(T* to, int c, float factor) const {
    struct alignas(4 * sizeof(T)) Four {
      T of[4];
    };
    const bool aligned = reinterpret_cast<uint64_t>(to) % sizeof(Four) == 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Four four;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = output_[2 * group + i / 2][c / 2 * 4 + i % 2 * 2 + c % 2] * factor;
        four.of[i] = Scores::template rounded<T>(x);
      }
      T* const at = to + first_channel(group);
      if (aligned) {
        *reinterpret_cast<Four*>(at) = four;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[i] = four.of[i];
      }
    }
  }

  Smem& smem_;
  const Pipeline<C.stages()> pipeline_;
  const uint32_t stages_, p_;
  PipelineState<C.stages()> at_;        // the next block's
  float output_[kValueSlabs][kScores];  // O^T
  float q_factor_[kColumns];            // undoes the powers of two of Q
  int exponent_[kGroups];               // of the largest scales so far, at least kLeastExponent
};

}  // namespace fa3::hopper
