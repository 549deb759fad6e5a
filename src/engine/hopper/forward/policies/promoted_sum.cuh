// SPDX-License-Identifier: Apache-2.0
// Two-level accumulation of O for e4m3 products. The tensor core drops the low bits of what it adds
// to a large sum, always towards zero. So the sum in its registers is a part of O, over a limited
// number of keys, and where a part ends it is promoted: it joins the sum of the earlier parts. That
// sum lies in shared memory, each thread's share for itself, in fp16 with a power of two for each
// row. Next: sum_promoted.cuh.
#pragma once

#include "engine/cuda/softmax/score_e4m3.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/config/e4m3_tuning.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

// A thread's share of the sum of a tile's earlier parts. `at` is where it lies: the lane's first
// eight numbers, and the others behind those of all lanes.
template <Kernel C>
class PromotedSum {
 public:
  static constexpr int kNumbers = C.shape.head_dim_v / 2;
  using Output = float[kNumbers];

  // A tile starts, with `blocks_left` key blocks to come. Its first part is half as long as the
  // others, so that sums go from -A/2 to A/2.
  __device__ __forceinline__ void start(int blocks_left) {
    unit_[0] = unit_[1] = 0.0f;
    end_ = blocks_left - 1 - promotion_blocks(C) / 2;
  }

  // A part ends while the scores of this block are computed, or behind the block.
  __device__ __forceinline__ bool promotes_under(int block) const {
    return promotes_under_scores(C) && block == end_;
  }
  __device__ __forceinline__ bool promotes_behind(int block) const {
    return !promotes_under_scores(C) && block == next_end();
  }
  __device__ __forceinline__ int next_end() const { return end_ + 1; }

  // Moves the sum to another reference.
  __device__ __forceinline__ void rescale(const float (&factor)[kRowsPerThread]) {
    unit_[0] *= factor[0];
    unit_[1] *= factor[1];
  }

  // `output` becomes the sum of all parts.
  __device__ __forceinline__ void add_to(Output& output, uint32_t at) const {
    if (!exist()) return;
#pragma unroll
    for (int i = 0; i < kNumbers; i += kTogether) {
      uint32_t pairs[kTogether / 2];
      ptx::ld_shared_b32x4(at + i / kTogether * kStride, pairs);
#pragma unroll
      for (int j = 0; j < kTogether; j += 2) {
        const float unit = unit_[fragment_row_index(j)];
        float first, second;
        ptx::unpack_pair<Element::kFp16>(pairs[j / 2], first, second);
        output[i + j] = fmaf(first, unit, output[i + j]);
        output[i + j + 1] = fmaf(second, unit, output[i + j + 1]);
      }
    }
  }

  // A part ends: twice its sum is added, its negative stays. Of a row that one key rules the sum
  // itself is added, and nothing stays: beside that key's V, or its negative, the others' small
  // terms would be cut to nothing. Before a last part that is about as short as the first one, this
  // may be so for all rows: then true is returned, and the next product assigns `output`. `rows`
  // have the sums of P of all parts.
  __device__ __forceinline__ bool promote(Output& output, const RowState& rows, uint32_t at) {
    constexpr int kPart = promotion_blocks(C);
    const bool existed = exist();
    const int blocks_left = end_ + 2;
    const bool starts_again = kMayStartAgain && blocks_left <= kPart - kPart / 2;
    float given[kRowsPerThread];    // once or twice, in the new unit
    float stays[kRowsPerThread];    // the factor of what stays
    uint32_t kept[kRowsPerThread];  // the old unit in the new one
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      const float sum = quad_sum(rows.sum[row]), power = power_of_two_in(sum);
      const float inverse = kRoom * rcp(power), ratio = unit_[row] * inverse;
      const bool ruled = sum < kRuledBelow;
      given[row] = starts_again || ruled ? inverse : 2.0f * inverse;
      stays[row] = ruled ? 0.0f : -1.0f;
      kept[row] = pack_pair<Element::kFp16>(ratio, ratio);
      unit_[row] = power * (1.0f / kRoom);
    }
    if constexpr (!kMayStartAgain) {
      store<true>(output, given, kept, at, existed);
    } else if (existed) {
      store<true>(output, given, kept, at, true);
    } else {
      store<false>(output, given, kept, at, false);
    }
    if (!starts_again) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) output[i] *= stays[fragment_row_index(i)];
    }
    end_ -= kPart;
    return starts_again;
  }

 private:
  static constexpr bool kMayStartAgain = starts_last_part_again(C);

  // `given` times the output is stored, or joins `kept` times what lies there, if anything does.
  template <bool Joins>
  static __device__ __forceinline__ void store(const Output& output,
                                               const float (&given)[kRowsPerThread],
                                               const uint32_t (&kept)[kRowsPerThread], uint32_t at,
                                               bool existed) {
#pragma unroll
    for (int i = 0; i < kNumbers; i += kTogether) {
      uint32_t pairs[kTogether / 2] = {};
      if (Joins && existed) ptx::ld_shared_b32x4(at + i / kTogether * kStride, pairs);
#pragma unroll
      for (int j = 0; j < kTogether; j += 2) {
        const int row = fragment_row_index(j);
        const uint32_t newest =
            pack_pair<Element::kFp16>(output[i + j] * given[row], output[i + j + 1] * given[row]);
        pairs[j / 2] = Joins ? ptx::fma_f16x2(pairs[j / 2], kept[row], newest) : newest;
      }
      ptx::st_shared_b32x4(at + i / kTogether * kStride, pairs);
    }
  }

  static constexpr int kTogether = 8;  // numbers of a lane that lie together
  static constexpr uint32_t kStride = kWarpSize * kTogether * bytes_of(Element::kFp16);

  __device__ __forceinline__ bool exist() const {
    return unit_[0] != 0.0f || unit_[1] != 0.0f;
  }

  // A number of O is at most the row's sum of P times 448, and some more since P is rounded: below
  // 2^10 times the power of two in that sum. What is stored is at most twice that, and fp16 ends at
  // 2^16.
  static constexpr float kRoom = 32.0f;

  // The largest P, about kTop, is more than half of a smaller sum.
  static constexpr float kRuledBelow = 2.0f * cuda::DescaledScore<1>::kTop;

  static __device__ __forceinline__ float power_of_two_in(float x) {
    constexpr uint32_t kExponent = 0x7f800000;
    return __uint_as_float(__float_as_uint(fminf(fmaxf(x, 0x1p-100f), 0x1p100f)) & kExponent);
  }

  float unit_[kRowsPerThread];  // of the numbers in shared memory; zero: there are none
  int end_ = 0;                 // the block whose step finds a part of O whole
};

}  // namespace fa3::hopper
