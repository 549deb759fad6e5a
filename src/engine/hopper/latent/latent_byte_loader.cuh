// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of bytes (Group128), or two. A thread copies 16 bytes at a time
// to a queue of its own in shared memory, and later turns what has arrived into bf16 in the ring:
// no thread waits for another's copies. e4m3 becomes bf16 exactly, without its scale, which the
// consumer multiplies scores and P by: K and V enter the products exactly, P times the scale is
// rounded.
//
// Units: a block's slabs of values, then its rope channels in two halves. Four neighbouring threads
// have 64 channels of a key, so a thread has two keys of a block, or one. Next: latent_rows.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

// Four e4m3 as bf16, 2^120 times too small: sign, exponent and mantissa as they are. Both NaN
// become numbers here.
struct RawBf16 {
  uint32_t low, high;
  __device__ __forceinline__ explicit RawBf16(uint32_t four) {
    low = moved(__byte_perm(four, 0, 0x1404));
    high = moved(__byte_perm(four, 0, 0x3424));
  }

 private:
  static __device__ __forceinline__ uint32_t moved(uint32_t upper) {
    return (upper & 0x80008000u) | (upper >> 4 & 0x07f007f0u);
  }
};

// Which of four e4m3 are NaN: the upper bit of each.
__device__ __forceinline__ uint32_t nan_bits(uint32_t four) {
  return ((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

// Eight e4m3 as bf16, exactly.
__device__ __forceinline__ void to_bf16(uint32_t first, uint32_t second, uint32_t (&out)[4]) {
  constexpr uint32_t kPower120 = 0x7b807b80;
  const RawBf16 a(first), b(second);
  out[0] = multiply_pairs<Element::kBf16>(a.low, kPower120);
  out[1] = multiply_pairs<Element::kBf16>(a.high, kPower120);
  out[2] = multiply_pairs<Element::kBf16>(b.low, kPower120);
  out[3] = multiply_pairs<Element::kBf16>(b.high, kPower120);
  const uint32_t nan[2] = {nan_bits(first), nan_bits(second)};
  if ((nan[0] | nan[1]) == 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = nan[i / 2] >> (i % 2 * 16);
    if (two & 0x80u) out[i] |= 0x7fffu;
    if (two & 0x8000u) out[i] |= 0x7fff0000u;
  }
}

template <LatentShape C>
class LatentByteLoader {
 public:
  struct Smem {
    alignas(16) unsigned char raw[C.raw_units()][Group128::kUnitBytes];
  };

  __device__ __forceinline__ LatentByteLoader(const LatentParams& params,
                                              const Pipeline<C.stages()>& pipeline, uint32_t slabs,
                                              Smem& smem, uint32_t scales, int thread)
      : keys_(params, thread / kThreadsOfKey),
        pipeline_(pipeline),
        slabs_(slabs),
        raw_(ptx::cvta_to_shared(smem.raw) + uint32_t(thread) * tile::kChunkBytes),
        scales_(scales),
        chunk_(thread % kThreadsOfKey) {}

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[kOwn];
    keys_.look_up(tile, segment.first, slots);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      const std::byte* rows[kOwn];
      bool exist[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const auto place = keys_.place_of(block, i, slots[i]);
        rows[i] = place.latent, exist[i] = place.exists;
      }
      if (block + 1 < segment.end) keys_.look_up(tile, block + 1, slots);
#pragma unroll 1
      for (int unit = 0; unit < C.units_of_block(); ++unit) {
        if (pending_ == C.raw_units()) {
          ptx::cp_async_wait_group<C.raw_units() - 1>();
          convert();
        }
        copy(rows, exist, unit);
      }
    }
  }

  // Converts what is still on its way.
  __device__ __forceinline__ void finish() {
    ptx::cp_async_wait_all();
    while (pending_ > 0) convert();
  }

 private:
  static constexpr int kThreadsOfKey = 4;
  static constexpr int kKeysAtOnce = C.loader_threads() / kThreadsOfKey;
  static constexpr int kOwn = kLatentBlockKeys / kKeysAtOnce;  // keys, and copies of a unit
  static_assert(kOwn == 1 || kOwn == 2);
  static constexpr int kCopyDistance = C.loader_threads() * tile::kChunkBytes;

  // The chunk of copy i of a half of the rope channels: of half the keys, or half of the one key.
  __device__ __forceinline__ int rope_chunk(int half, int i) const {
    return chunk_ + (kOwn == 2 ? i : half) * kThreadsOfKey;
  }

  __device__ __forceinline__ void copy(const std::byte* const (&rows)[kOwn],
                                       const bool (&exist)[kOwn], int unit) {
    const uint32_t to = raw_ + uint32_t(next_raw_) * Group128::kUnitBytes;
    const int half = unit - kValueSlabs;  // of the rope channels
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const std::byte* from = rows[i] + unit * kSlabChannels + chunk_ * tile::kChunkBytes;
      bool exists = exist[i];
      if (half >= 0) {
        const std::byte* const row = half == 0 ? rows[0] : rows[kOwn - 1];
        from = row + Group128::kRopeOffset + rope_chunk(half, i) * tile::kChunkBytes;
        exists = half == 0 ? exist[0] : exist[kOwn - 1];
      }
      ptx::cp_async_16(to + uint32_t(i * kCopyDistance), from, exists);
    }
    if (unit == 0) {
      if (chunk_ == 0) {
        const uint32_t slot = scales_ + uint32_t(blocks_ % Group128::kScaleSlots *
                                                 kLatentBlockKeys * Group128::kScaleBytes);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          ptx::cp_async_16(
              slot + uint32_t((keys_.first() + i * kKeysAtOnce) * Group128::kScaleBytes),
              rows[i] + Group128::kScaleOffset, exist[i]);
        }
      }
      ++blocks_;
    }
    ptx::cp_async_commit_group();
    next_raw_ = next_raw_ + 1 == C.raw_units() ? 0 : next_raw_ + 1;
    ++pending_;
  }

  // The oldest unit that has arrived. Scales that came with it are there for whoever waits for its
  // slab. A slot of scales is free again by the time it is copied to: a copy is at most raw_units()
  // and stages() ahead of the slabs that the consumer has released; a block has 8 or more of each.
  __device__ __forceinline__ void convert() {
    static_assert((C.raw_units() + 7) / 8 + (C.stages() + 7) / 8 + 2 <= Group128::kScaleSlots);
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    uint32_t read[kOwn][4];
    const uint32_t from = raw_ + uint32_t(oldest_raw_) * Group128::kUnitBytes;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      ptx::ld_shared_b32x4(from + uint32_t(i * kCopyDistance), read[i]);
    }
    const uint32_t slab = slabs_ + at_.stage() * kSlabBytes;
    const auto store = [&](int key, int chunk, const uint32_t(&eight)[4]) {
      ptx::st_shared_b32x4(slab + uint32_t(key * kSlab.row_bytes() +
                                           kSlab.swizzled_chunk(chunk, key) * tile::kChunkBytes),
                           eight);
    };
    const int half = oldest_unit_ - kValueSlabs;
    if (half < 0) {
      uint32_t converted[kOwn][2][4];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        to_bf16(read[i][0], read[i][1], converted[i][0]);
        to_bf16(read[i][2], read[i][3], converted[i][1]);
      }
      pipeline_.wait_empty(at_);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int key = keys_.first() + i * kKeysAtOnce;
        store(key, 2 * chunk_, converted[i][0]);
        store(key, 2 * chunk_ + 1, converted[i][1]);
      }
    } else {
      if (half == 0) pipeline_.wait_empty(at_);
      const int key = keys_.first() + half * (kOwn - 1) * kKeysAtOnce;
      store(key, rope_chunk(half, 0), read[0]);
      if constexpr (kOwn == 2) store(key, rope_chunk(half, 1), read[1]);
    }
    if (half != 0) {
      ptx::fence_proxy_async();
      __syncwarp();
      if (leads_warp()) ptx::mbarrier_arrive(pipeline_.full(at_.stage()));
      at_.advance();
    }
    oldest_raw_ = oldest_raw_ + 1 == C.raw_units() ? 0 : oldest_raw_ + 1;
    oldest_unit_ = oldest_unit_ + 1 == C.units_of_block() ? 0 : oldest_unit_ + 1;
    --pending_;
  }

  const LatentKeys<kOwn, kKeysAtOnce> keys_;
  const Pipeline<C.stages()> pipeline_;
  const uint32_t slabs_, raw_, scales_;
  const int chunk_;  // of the 64 channels
  PipelineState<C.stages()> at_;
  int pending_ = 0;  // units that are copied and not converted
  int next_raw_ = 0, oldest_raw_ = 0, oldest_unit_ = 0;
  unsigned blocks_ = 0;
};

}  // namespace fa3::hopper
