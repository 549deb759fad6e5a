// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 656 bytes (Group128) in CTAs of 64 query rows. Two blocks of
// 16 bits fill shared memory, and their halves are free one after the other. So raw values take two
// ways:
// * The half that a block needs first waits in registers. It is asked for a block before, while its
//   place in the ring is still read.
// * cp.async copies the other half to where its fp16 is to lie. It is asked for when that is free:
//   before the first half is converted, or else behind it.
// Rope channels are copied to their place and multiplied there.
//
// A warp has 16 keys of a block: 2 KB of each slab, keys 0 to 7 in the first 1 KB. Copied raw
// values of a half, 256 bytes a key, lie in the second 1 KB of its four slabs. The warp converts
// them in two steps, keys 0 to 7 and 8 to 15: it reads all of a step before it stores any. No other
// warp touches its part.
//
// e4m3 becomes fp16: a number times the scale of its group, divided by the unit of 16 keys. The
// unit is the power of two that brings their largest scale to 2^6..2^7, so that 448 times a scale
// fits. Scales are rounded to 11 bits, and numbers times scales again. Numbers are normal if they
// are at least 2^-29 of 448 times the largest scale of the 16 keys. Rope channels stay bf16,
// divided by the unit as well: exactly. The unit is at least 2^-100, so that no sum overflows for
// them: values below 2^-125 are zeros.
//
// Next: latent_wide_rows.cuh.
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
        lane_(ptx::lane()),
        warp_at_(ring_.slab(0, 0) + uint32_t(first_key(thread) * kSlabRowBytes)) {
    const MlaProblem& p = params.problem;
    // Something to read where a key does not exist.
    base_ =
        p.keys.cache.pages > 0 ? p.keys.cache.latent.data : static_cast<const std::byte*>(p.q.data);
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    static_assert(kSlab.row_bytes() == kSlabRowBytes);
    const auto address_of = [&](int slab, int chunk, int key) {
      return warp_at_ + uint32_t(slab * kSlabBytes + key * kSlabRowBytes +
                                 kSlab.swizzled_chunk(chunk, key) * kChunk);
    };
    static_assert(kWarpKeys % 8 == 0);  // the swizzle turns with keys % 8
    to_values_ = address_of(lane_ / 8, lane_ % 4 * 2, value_key());
    to_rope_ = address_of(kValueSlabs, lane_ % 8, rope_key());
  }

  // A block a turn. Even and odd blocks take their halves in different orders, as consumers do.
  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    if (segment.first >= segment.end) return;
    int slots[1];
    keys_.look_up(tile, segment.first, slots);
    Rows rows, next;  // of this block and of the one behind it
    find(rows, segment.first, slots[0], true);
    keys_.look_up(tile, segment.first + 1, slots);
    Raw raw;
    uint32_t scales[2];
    request(rows, 0, raw, scales);
    find(next, segment.first + 1, slots[0], segment.first + 1 < segment.end);
    keys_.look_up(tile, segment.first + 2, slots);
    Factors factors;
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      const int odd = (block - segment.first) & 1, half = odd;
      ring_.wait_empty(odd, half);
      if (kHasRope && half == 1) copy_rope(odd, rows);
      ptx::cp_async_commit_group();
      const bool is_asked = ring_.is_empty(odd, 1 - half);
      if (is_asked) ask(odd, 1 - half, rows);
      if (rows.exist != 0xffffffff) drop_absent(rows.exist, raw, scales);
      weigh(odd, scales, factors);
      convert(odd, half, 0, factors, raw);
      if (kHasRope && half == 1) {
        is_asked ? ptx::cp_async_wait_group<1>() : ptx::cp_async_wait_group<0>();
      }
      finish(odd, half, factors);
      const Rows present = rows;
      rows = next;
      request(rows, 1 - half, raw, scales);  // first of the next block
      find(next, block + 2, slots[0], block + 2 < segment.end);
      keys_.look_up(tile, block + 3, slots);
      if (!is_asked) {
        ring_.wait_empty(odd, 1 - half);
        ask(odd, 1 - half, present);
      }
      ring_.next(odd);
      ptx::cp_async_wait_group<0>();
      __syncwarp();
#pragma unroll 1
      for (int first = 0; first < kPieces; first += kPieces / 2) {
        convert_in_place(odd, 1 - half, first, factors);
      }
      finish(odd, 1 - half, factors);
    }
  }

 private:
  using Ring = LatentWideRing<C>;
  static constexpr int kWarpKeys = kLatentBlockKeys / kWarpsPerWarpgroup;
  // 16 bytes of a thread: two keys of the warp, of half of the channels; or four, of the rope's.
  static constexpr int kPieces = kWarpKeys / 2, kRopePieces = kWarpKeys / 4;
  static constexpr int kSlabRowBytes = kSlabChannels * 2;
  static constexpr int kBlockBytes = C.slabs() * kSlabBytes;          // in the ring
  static constexpr int kHalfBytes = Ring::kHalfSlabs * kSlabBytes;    // of values, in the ring
  static constexpr int kRawBytes = Ring::kHalfSlabs * kSlabChannels;  // of a row
  static constexpr bool kHasRope = C.slabs() > kValueSlabs;
  static constexpr int kChunk = tile::kChunkBytes;
  static constexpr int kTopOfScales = 6;
  static constexpr uint32_t kInfinite = 0x7f800000;
  static constexpr int kRawOffset = kWarpKeys / 2 * kSlabRowBytes;  // in the warp's 2 KB of a slab

  using Raw = uint32_t[kPieces][4];  // half of a block

  // The warp's keys. Lanes n and n + 16 have looked for key n.
  struct Rows {
    uint32_t chunk = 0;  // where the row begins, in 16 bytes from base_ (plan_latent.cpp)
    unsigned exist = 0;  // a bit a lane
  };
  // What numbers are multiplied by: pairs of equal ones. Lanes n and n + 16 have those of groups 0
  // and 2, 1 and 3 of key n.
  struct Factors {
    uint32_t scales[2] = {};  // by the unit, in fp16
    uint32_t to_unit = 0;     // 1 by the unit, in bf16
  };

  static __device__ __forceinline__ int first_key(int thread) {
    return thread / kWarpSize * kWarpKeys;
  }
  __device__ __forceinline__ void find(Rows& rows, int block, int slot, bool goes_on) const {
    const auto place = keys_.place_of(block, 0, slot);
    const bool exists = place.exists && goes_on;
    rows.chunk = exists ? uint32_t((place.latent - base_) / kChunk) : 0;
    rows.exist = __ballot_sync(0xffffffff, exists);
  }

  __device__ __forceinline__ const std::byte* at(uint32_t chunk) const {
    return base_ + uint64_t{chunk} * kChunk;
  }

  // ---- Raw values by way of their place ----

  static __device__ __forceinline__ uint32_t offset_of(int odd, int half) {
    return uint32_t(odd * kBlockBytes + half * kHalfBytes);
  }
  // The lane's chunk of a half.
  __device__ __forceinline__ uint32_t raw_place(uint32_t offset, int piece) const {
    const uint32_t lane = settled(lane_);
    return warp_at_ + offset + lane / 16 * kSlabBytes + lane % 16 * kChunk + uint32_t(kRawOffset) +
           raw_offset(piece);
  }
  static FA3_HD constexpr uint32_t raw_offset(int piece) {
    return uint32_t(piece % 2 * 2 * kSlabBytes + piece / 2 * 16 * kChunk);
  }
  __device__ __forceinline__ void ask(int odd, int half, const Rows& rows) const {
    const uint32_t offset = offset_of(odd, half);
    const std::byte* const from = base_ + in_half() * kChunk + half * kRawBytes;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint32_t key = value_key() + uint32_t(piece) * 2;
      const uint32_t row = __shfl_sync(0xffffffff, rows.chunk, int(key));
      ptx::cp_async_16(raw_place(offset, piece), from + uint64_t{row} * kChunk,
                       rows.exist >> key & 1);
    }
    if (kHasRope && half == 1) copy_rope(odd, rows);
    ptx::cp_async_commit_group();
  }
  // Half of the pieces, behind the wait for their copies.
  __device__ __forceinline__ void convert_in_place(int odd, int half, int first,
                                                   const Factors& factors) const {
    const uint32_t from = raw_place(offset_of(odd, half), 0) + uint32_t(first * 8 * kChunk);
    uint32_t raw[kPieces / 2][4];
#pragma unroll
    for (int piece = 0; piece < kPieces / 2; ++piece) {
      ptx::ld_shared_b32x4(from + raw_offset(piece), raw[piece]);
    }
    __syncwarp();  // what fp16 will lie over has been read
    convert(odd, half, first, factors, raw);
  }

  // ---- Raw values by way of registers ----

  __device__ __forceinline__ void request(const Rows& rows, int half, Raw& raw,
                                          uint32_t (&scales)[2]) const {
    const std::byte* const from = base_ + in_half() * kChunk + half * kRawBytes;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint32_t key = value_key() + uint32_t(piece) * 2;
      const uint32_t row = __shfl_sync(0xffffffff, rows.chunk, int(key));
      ptx::load_constant(from + uint64_t{row} * kChunk, raw[piece]);
    }
    const std::byte* const of_key =
        at(rows.chunk) + Group128::kScaleOffset + lane_ / kWarpKeys * int(sizeof(float));
    scales[0] = ptx::load_constant(of_key);
    scales[1] = ptx::load_constant(of_key + 2 * sizeof(float));
  }
  __device__ __forceinline__ void drop_absent(unsigned exist, Raw& raw,
                                              uint32_t (&scales)[2]) const {
    if ((exist >> lane_ & 1) == 0) scales[0] = scales[1] = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const bool exists = exist >> (value_key() + uint32_t(piece) * 2) & 1;
#pragma unroll
      for (uint32_t& word : raw[piece]) word = exists ? word : 0;
    }
  }

  // ---- Conversion ----

  // Stores the unit of a block.
  __device__ __forceinline__ void weigh(int odd, const uint32_t (&scales)[2],
                                        Factors& factors) const {
    int most = 0;
#pragma unroll
    for (const uint32_t scale : scales) {
      const uint32_t size = scale & 0x7fffffff;
      if (size < kInfinite) most = max(most, int(size));
    }
    most = __reduce_max_sync(0xffffffff, most);
    const int unit = max((most >> kMantissaBits) - kExponentBias - kTopOfScales, kLeastLatentUnit);
    const float to_unit = power_of_two(kExponentBias - unit);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float by_unit = __uint_as_float(scales[i]) * to_unit;
      factors.scales[i] = cuda::pack_pair<Element::kFp16>(by_unit, by_unit);
    }
    factors.to_unit = cuda::pack_pair<Element::kBf16>(to_unit, to_unit);
    if (leads_warp()) {
      ptx::st_shared_b32(ring_.unit(odd, keys_.first() / kWarpKeys), __float_as_uint(float(unit)));
    }
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
  // The lane's chunk of half of a row.
  __device__ __forceinline__ uint32_t in_half() const {
    const uint32_t lane = settled(lane_);
    return lane / 8 * 4 + lane % 4;
  }

  // Pieces from `first` on: 0, or the fifth.
  template <int Count>
  __device__ __forceinline__ void convert(int odd, int half, int first, const Factors& factors,
                                          const uint32_t (&raw)[Count][4]) const {
    static_assert(kPieces / 2 % 4 == 0);  // a turn of the swizzle
    const uint32_t to =
        settled(to_values_) + offset_of(odd, half) + uint32_t(first * 2 * kSlabRowBytes);
    const uint32_t of_half = half == 0 ? factors.scales[0] : factors.scales[1];
    const uint32_t of_key =
        value_key() + settled(lane_) / kWarpKeys * kWarpKeys + uint32_t(first) * 2;
#pragma unroll
    for (int piece = 0; piece < Count; ++piece) {
      const uint32_t scale = __shfl_sync(0xffffffff, of_half, int(of_key) + piece * 2);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t eight[4];
#pragma unroll
        for (int four = 0; four < 2; ++four) {
          ptx::e4m3_to_f16(raw[piece][part * 2 + four], eight[four * 2], eight[four * 2 + 1]);
        }
#pragma unroll
        for (uint32_t& pair : eight) pair = cuda::multiply_pairs<Element::kFp16>(pair, scale);
        ptx::st_shared_b32x4(
            (to ^ uint32_t((piece % 4 * 2 + part) * kChunk)) + uint32_t(piece * 2 * kSlabRowBytes),
            eight);
      }
    }
  }

  // What the swizzle turns lies at an exclusive or of the lane's first place (layout.h).
  // Where the lane's chunk of rope channels lies, of its key number `piece`.
  __device__ __forceinline__ uint32_t rope_place(int odd, int piece) const {
    return (settled(to_rope_) ^ uint32_t(piece % 2 * 4 * kChunk)) +
           uint32_t(odd * kBlockBytes + piece * 4 * kSlabRowBytes);
  }
  // Rope channels are copied to where they belong, and multiplied there by the same lane.
  __device__ __forceinline__ void copy_rope(int odd, const Rows& rows) const {
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
      const uint32_t key = rope_key() + uint32_t(piece) * 4;
      const uint32_t row = __shfl_sync(0xffffffff, rows.chunk, int(key));
      ptx::cp_async_16(rope_place(odd, piece), at(row + settled(lane_) % 8) + Group128::kRopeOffset,
                       rows.exist >> key & 1);
    }
  }
  __device__ __forceinline__ void convert_rope(int odd, const Factors& factors) const {
    uint32_t raw[kRopePieces][4];
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
      ptx::ld_shared_b32x4(rope_place(odd, piece), raw[piece]);
    }
#pragma unroll
    for (int piece = 0; piece < kRopePieces; ++piece) {
#pragma unroll
      for (uint32_t& pair : raw[piece]) {
        pair = cuda::multiply_pairs<Element::kBf16>(pair, factors.to_unit);
      }
      ptx::st_shared_b32x4(rope_place(odd, piece), raw[piece]);
    }
  }

  // Multiplies rope channels, and tells consumers of the half.
  __device__ __forceinline__ void finish(int odd, int half, const Factors& factors) const {
    if (kHasRope && half == 1) convert_rope(odd, factors);
    ptx::fence_proxy_async();
    __syncwarp();
    if (leads_warp()) ptx::mbarrier_arrive(ring_.full(odd, half));
  }

  const LatentKeys<1, 0> keys_;  // the key that this lane looks for
  Ring ring_;
  const int lane_;
  const uint32_t warp_at_;  // the warp's part of the ring's first slab
  const std::byte* base_;
  uint32_t to_values_, to_rope_;  // the lane's first chunk of a half of an even block, and of rope
};

}  // namespace fa3::hopper
