// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 656 bytes (Group128) in CTAs of 64 query rows. Two blocks of
// 16 bits fill shared memory, so raw values wait in registers: those of half of a block are
// converted one by one, and each asks for one of the half that comes next. All are waited for
// together: ptxas has one scoreboard count all loads. Rope channels are copied to their place, and
// the L2 cache is asked for a row a block before.
//
// e4m3 becomes fp16: a number times the scale of its group, divided by the unit of 16 keys. The
// unit is the power of two that brings their largest scale to 2^6..2^7, so that 448 times a scale
// fits. Scales are rounded to 11 bits, and numbers times scales again. Numbers are normal if they
// are at least 2^-29 of 448 times the largest scale of the 16 keys. Rope channels stay bf16,
// divided by the unit as well: exactly. The unit is at least 2^-100, so that no sum overflows for
// them: values below 2^-125 are zeros.
//
// A warp has 16 keys of a block. Next: latent_wide_rows.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_query_factor.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/latent/wide/latent_wide_ring.cuh"
#include "engine/hopper/ptx/constant.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/e4m3.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideByteLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentWideByteLoader(const LatentParams& params,
                                                  const Pipeline<C.stages()>& pipeline,
                                                  uint32_t stages, Smem&, int thread)
      : keys_(params, first_key(thread) + ptx::lane() % kWarpKeys),
        ring_(pipeline, stages),
        lane_(ptx::lane()) {
    const MlaProblem& p = params.problem;
    // Something to read where a key does not exist.
    base_ =
        p.keys.cache.pages > 0 ? p.keys.cache.latent.data : static_cast<const std::byte*>(p.q.data);
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    static_assert(kSlab.row_bytes() == kSlabRowBytes);
    const auto address_of = [&](int slab, int chunk, int key) {
      const int row = first_key(thread) + key;
      return ring_.slab(0, slab) +
             uint32_t(row * kSlabRowBytes + kSlab.swizzled_chunk(chunk, row) * tile::kChunkBytes);
    };
    to_values_ = address_of(lane_ / 8, lane_ % 4 * 2, value_key());
    to_rope_ = address_of(kValueSlabs, lane_ % 8, rope_key());
  }

  // Two blocks a turn: even and odd ones take their halves in different orders.
  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    if (segment.first >= segment.end) return;
    int slots[1];
    keys_.look_up(tile, segment.first, slots);
    const auto find_next = [&](Rows& rows, int block) {
      find(rows, block, slots[0], block < segment.end);
      keys_.look_up(tile, block + 1, slots);
    };
    Rows even, odd;
    Raw raw;
    Factors factors;
    find_next(even, segment.first);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) request<0>(even, piece, raw[piece]);
#pragma unroll 1
    for (int block = segment.first;; block += 2) {
      find_next(odd, block + 1);
      take<0, 0>(even, even, factors, raw);
      take<0, 1>(even, odd, factors, raw);
      ring_.next(0);
      if (block + 1 >= segment.end) break;
      find_next(even, block + 2);
      take<1, 1>(odd, odd, factors, raw);
      take<1, 0>(odd, even, factors, raw);
      ring_.next(1);
      if (block + 2 >= segment.end) break;
    }
  }

 private:
  using Ring = LatentWideRing<C>;
  static constexpr int kWarpKeys = kLatentBlockKeys / kWarpsPerWarpgroup;
  // 16 bytes of a thread: two keys of the warp, of half of the channels; or four, of the rope's.
  static constexpr int kPieces = kWarpKeys / 2, kRopePieces = kWarpKeys / 4;
  static constexpr int kSlabRowBytes = kSlabChannels * 2;
  static constexpr int kBlockBytes = C.slabs() * kSlabBytes;           // in the ring
  static constexpr int kHalfBytes = Ring::kHalfSlabs * kSlabChannels;  // of a row
  static constexpr bool kHasRope = C.slabs() > kValueSlabs;
  static constexpr int kLineBytes = 128, kRowLines = 6;  // that a row touches, at most
  static constexpr int kTopOfScales = 6;
  static constexpr uint32_t kInfinite = 0x7f800000;

  using Raw = uint32_t[kPieces][4];  // half of a block, on its way

  // The warp's keys. Lanes n and n + 16 have looked for key n, and have the scales of groups 0 and
  // 2 or 1 and 3.
  struct Rows {
    uint32_t chunk;  // where the row begins, in 16 bytes from base_ (plan_latent.cpp)
    unsigned exist;  // a bit a lane
    uint32_t scales[2];
  };
  // What numbers are multiplied by: pairs of equal ones.
  struct Factors {
    uint32_t scales[2];  // by the unit, in fp16
    uint32_t to_unit;    // 1 by the unit, in bf16
  };

  static __device__ __forceinline__ int first_key(int thread) {
    return thread / kWarpSize * kWarpKeys;
  }
  __device__ __forceinline__ void find(Rows& rows, int block, int slot, bool goes_on) const {
    const auto place = keys_.place_of(block, 0, slot);
    const bool exists = place.exists && goes_on;
    rows.chunk = exists ? uint32_t((place.latent - base_) / tile::kChunkBytes) : 0;
    rows.exist = __ballot_sync(0xffffffff, exists);
    const std::byte* const row = at(rows.chunk);
    if (exists) {  // lines of 128 bytes: two lanes have a key
#pragma unroll
      for (int line = 0; line < kRowLines / 2; ++line) {
        cuda::prefetch_to_l2(row + (lane_ / kWarpKeys * (kRowLines / 2) + line) * kLineBytes);
      }
    }
    const std::byte* const scales =
        row + Group128::kScaleOffset + lane_ / kWarpKeys * int(sizeof(float));
    rows.scales[0] = ptx::load_constant(scales);
    rows.scales[1] = ptx::load_constant(scales + 2 * sizeof(float));
  }

  __device__ __forceinline__ const std::byte* at(uint32_t chunk) const {
    return base_ + uint64_t{chunk} * tile::kChunkBytes;
  }

  // Stores the unit of a block.
  template <int Odd>
  __device__ __forceinline__ void weigh(const Rows& rows, Factors& factors) const {
    const bool exists = rows.exist >> lane_ & 1;
    int most = 0;
#pragma unroll
    for (const uint32_t scale : rows.scales) {
      const uint32_t size = scale & 0x7fffffff;
      if (exists && size < kInfinite) most = max(most, int(size));
    }
    most = __reduce_max_sync(0xffffffff, most);
    const int unit = max((most >> kMantissaBits) - kExponentBias - kTopOfScales, kLeastLatentUnit);
    const float to_unit = power_of_two(kExponentBias - unit);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float by_unit = exists ? __uint_as_float(rows.scales[i]) * to_unit : 0.0f;
      factors.scales[i] = cuda::pack_pair<Element::kFp16>(by_unit, by_unit);
    }
    factors.to_unit = cuda::pack_pair<Element::kBf16>(to_unit, to_unit);
    if (leads_warp()) {
      ptx::st_shared_b32(ring_.unit(Odd, keys_.first() / kWarpKeys), __float_as_uint(float(unit)));
    }
  }

  // Converts a half of an even or odd block, and asks for the half that comes next: of `next`.
  template <int Odd, int Half>
  __device__ __forceinline__ void take(const Rows& rows, const Rows& next, Factors& factors,
                                       Raw& raw) {
    constexpr int kNextHalf = 1 - Odd;
    if (rows.exist != 0xffffffff) drop_absent(rows.exist, raw);
    ring_.wait_empty(Odd, Half);
    if constexpr (Half == Odd) weigh<Odd>(rows, factors);
    if constexpr (kHasRope && Half == 1) copy_rope<Odd>(rows);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      convert<Odd, Half>(factors, piece, raw[piece]);
      request<kNextHalf>(next, piece, raw[piece]);
    }
    if constexpr (kHasRope && Half == 1) convert_rope<Odd>(factors);
    ptx::fence_proxy_async();
    __syncwarp();
    if (leads_warp()) ptx::mbarrier_arrive(ring_.full(Odd, Half));
  }

  // The compiler would keep what follows from a number for all pieces, and spill it.
  template <class T>
  static __device__ __forceinline__ uint32_t settled(T x) {
    auto word = uint32_t(x);
    cuda::settle(word);
    return word;
  }

  // The lane's keys in a piece, of the warp's. Four lanes have the same slab of a key, and their
  // neighbours that of the next key: no bank conflicts.
  __device__ __forceinline__ uint32_t value_key() const {
    return settled(lane_) / 4 % 2;
  }
  __device__ __forceinline__ uint32_t rope_key() const {
    return settled(lane_) / 8;
  }

  template <int Half>
  __device__ __forceinline__ void request(const Rows& rows, int piece, uint32_t (&raw)[4]) const {
    const uint32_t lane = settled(lane_), in_half = lane / 8 * 4 + lane % 4;
    const uint32_t row = __shfl_sync(0xffffffff, rows.chunk, int(value_key()) + piece * 2);
    ptx::load_constant(at(row + in_half) + Half * kHalfBytes, raw);
  }

  __device__ __forceinline__ void drop_absent(unsigned exist, Raw& raw) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const bool exists = exist >> (value_key() + piece * 2) & 1;
#pragma unroll
      for (uint32_t& word : raw[piece]) word = exists ? word : 0;
    }
  }

  // What the swizzle turns lies at an exclusive or of the lane's first place (layout.h).
  // Where the lane's chunk of rope channels lies, of its key number `piece`.
  template <int Odd>
  __device__ __forceinline__ uint32_t rope_place(int piece) const {
    return (settled(to_rope_) ^ uint32_t(piece % 2 * 4 * tile::kChunkBytes)) +
           uint32_t(Odd * kBlockBytes + piece * 4 * kSlabRowBytes);
  }
  // Rope channels are copied to where they belong, and multiplied there.
  template <int Odd>
  __device__ __forceinline__ void copy_rope(const Rows& rows) const {
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
      const uint32_t key = rope_key() + piece * 4;
      const uint32_t row = __shfl_sync(0xffffffff, rows.chunk, int(key));
      ptx::cp_async_16(rope_place<Odd>(piece), at(row + settled(lane_) % 8) + Group128::kRopeOffset,
                       rows.exist >> key & 1);
    }
  }
  template <int Odd>
  __device__ __forceinline__ void convert_rope(const Factors& factors) const {
    ptx::cp_async_wait_all();
    uint32_t raw[kRopePieces][4];
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
      ptx::ld_shared_b32x4(rope_place<Odd>(piece), raw[piece]);
    }
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
#pragma unroll
      for (uint32_t& pair : raw[piece]) {
        pair = cuda::multiply_pairs<Element::kBf16>(pair, factors.to_unit);
      }
      ptx::st_shared_b32x4(rope_place<Odd>(piece), raw[piece]);
    }
  }
  template <int Odd, int Half>
  __device__ __forceinline__ void convert(const Factors& factors, int piece,
                                          const uint32_t (&raw)[4]) const {
    const uint32_t of_key = value_key() + settled(lane_) / kWarpKeys * kWarpKeys;
    const uint32_t scale = __shfl_sync(0xffffffff, factors.scales[Half], int(of_key) + piece * 2);
    const uint32_t to = settled(to_values_);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t eight[4];
#pragma unroll
      for (int four = 0; four < 2; ++four) {
        ptx::e4m3_to_f16(raw[part * 2 + four], eight[four * 2], eight[four * 2 + 1]);
      }
#pragma unroll
      for (uint32_t& pair : eight) pair = cuda::multiply_pairs<Element::kFp16>(pair, scale);
      ptx::st_shared_b32x4((to ^ uint32_t((piece % 4 * 2 + part) * tile::kChunkBytes)) +
                               uint32_t(Odd * kBlockBytes + Half * Ring::kHalfSlabs * kSlabBytes +
                                        piece * 2 * kSlabRowBytes),
                           eight);
    }
  }

  const LatentKeys<1, 0> keys_;  // the key that this lane looks for
  Ring ring_;
  const int lane_;
  const std::byte* base_;
  uint32_t to_values_, to_rope_;  // the lane's first chunk of a half of an even block, and of rope
};

}  // namespace fa3::hopper
