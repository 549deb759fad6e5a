// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of bytes (Group128) in CTAs of 64 query rows. Two blocks of bf16
// fill shared memory, so raw rows wait in registers: a thread asks for a batch of 16 bytes of four
// keys, and converts the batch before last meanwhile. Scales are multiplied here: the products are
// those of 16-bit rows (latent_wide_rows.cuh), and K and V times their scales are rounded to bf16.
//
// A warp has 16 keys of a block. Batches: channels 0 to 255 of eight keys, and of the others;
// channels 256 to 511 likewise; rope channels of all. Next: latent_wide_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/latent/latent_wide_ring.cuh"
#include "engine/hopper/ptx/e4m3.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideByteLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentWideByteLoader(const LatentParams& params,
                                                  const Pipeline<C.stages()>& pipeline,
                                                  uint32_t stages, Smem&, uint32_t, int thread)
      : params_(params),
        first_key_(thread / kWarpSize * kKeysOfWarp),
        keys_(params, first_key_ + ptx::lane() % kKeysOfWarp),
        ring_(pipeline, stages) {}

  // Two blocks a turn: so neither what is on its way nor its rows change their registers.
  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    if (segment.first >= segment.end) return;
    int slots[1];
    keys_.look_up(tile, segment.first, slots);
    Rows even = find(segment.first, slots[0], true), odd;
    Raw raw[2];
    request<0>(even, raw[0]);
    request<1>(even, raw[1]);
#pragma unroll 1
    for (int block = segment.first;; block += 2) {
      keys_.look_up(tile, block + 1, slots);
      take<0, 0>(even, odd, raw, [&] { odd = find(block + 1, slots[0], block + 1 < segment.end); });
      if (block + 1 >= segment.end) break;
      keys_.look_up(tile, block + 2, slots);
      take<0, 1>(odd, even, raw,
                 [&] { even = find(block + 2, slots[0], block + 2 < segment.end); });
      if (block + 2 >= segment.end) break;
    }
  }
  __device__ __forceinline__ void finish() const {}

 private:
  using Ring = LatentWideRing<C>;
  static constexpr int kKeysOfWarp = kLatentBlockKeys / kWarpsPerWarpgroup;
  static constexpr int kCopies = 4;  // of a thread in a batch of values
  using Raw = uint32_t[kCopies][4];
  static constexpr int kBatchSlabs = Group128::kBatchSlabs;
  static constexpr int kOfQuad = kKeysOfWarp / 8;  // batches
  static constexpr int kRopeBatch = kOfQuad * kValueSlabs / kBatchSlabs;
  static constexpr int kBatches = kRopeBatch + (C.slabs() > kValueSlabs ? 1 : 0);
  static constexpr int kRowBytes = kSlabChannels * 2;
  static constexpr int kSlabThreads = kSlabChannels / tile::kChunkBytes;  // 16 channels each
  static constexpr int kRopeThreads = kSlabChannels * 2 / tile::kChunkBytes;

  // The warp's keys. Lanes n and n + 16 have looked for key n: its address, and the scales of
  // groups 0 and 2 or 1 and 3.
  struct Rows {
    uint64_t address;
    unsigned exist;  // a bit a key
    float scales[2];
  };

  // Converts an even or odd block's batches from Batch on, and asks for those that come two later.
  template <int Batch, int Odd, class FindNext>
  __device__ __forceinline__ void take(const Rows& rows, const Rows& next, Raw (&raw)[2],
                                       const FindNext& find_next) {
    Raw& own = raw[(Batch + Odd * kBatches) % 2];
    convert<Batch, Odd>(rows, own);
    if constexpr (Batch == kBatches - 2) find_next();
    if constexpr (Batch < kBatches - 2) {
      request<Batch + 2>(rows, own);
    } else {
      request<Batch + 2 - kBatches>(next, own);
    }
    if constexpr (Batch + 1 < kBatches) {
      take<Batch + 1, Odd>(rows, next, raw, find_next);
    } else {
      ring_.next(Odd);
    }
  }

  // Keys that do not exist have an address too, from which convert() takes nothing: a load under a
  // condition would be waited for where it begins, since it may leave its register alone.
  __device__ __forceinline__ Rows find(int block, int slot, bool goes_on) const {
    const auto place = keys_.place_of(block, 0, slot);
    const bool exists = place.exists && goes_on;
    const std::byte* const row =
        exists ? place.latent : static_cast<const std::byte*>(params_.problem.q.data);
    Rows rows;
    rows.address = reinterpret_cast<uint64_t>(row);
    rows.exist = __ballot_sync(0xffffffff, exists);
    const std::byte* const scales =
        row + Group128::kScaleOffset + ptx::lane() / 16 * int(sizeof(float));
    ptx::load_constant(scales, rows.scales[0]);
    ptx::load_constant(scales + 2 * sizeof(float), rows.scales[1]);
    return rows;
  }

  // The first key, of the warp's, of which this lane has copies of a batch, and how far apart they
  // are. Four lanes have the same slab of a key, and their neighbours that of the next key: no bank
  // conflicts.
  template <int Batch>
  static __device__ __forceinline__ int first_key() {
    return Batch == kRopeBatch ? ptx::lane() / kRopeThreads
                               : ptx::lane() / kSlabThreads % 2 + Batch % kOfQuad * 2 * kCopies;
  }
  template <int Batch>
  static constexpr int kDistance = Batch == kRopeBatch ? kWarpSize / kRopeThreads : 2;
  template <int Batch>
  static constexpr int kCount = Batch == kRopeBatch ? kKeysOfWarp / kDistance<Batch> : kCopies;

  template <int Batch>
  static __device__ __forceinline__ void request(const Rows& rows, Raw& raw) {
    const int first = Batch == kRopeBatch
                          ? Group128::kRopeOffset + ptx::lane() % kRopeThreads * tile::kChunkBytes
                          : (Batch / kOfQuad * kBatchSlabs + ptx::lane() / 8) * kSlabChannels +
                                ptx::lane() % kSlabThreads * tile::kChunkBytes;
#pragma unroll
    for (int i = 0; i < kCount<Batch>; ++i) {
      const int key = first_key<Batch>() + i * kDistance<Batch>;
      const uint32_t low = __shfl_sync(0xffffffff, uint32_t(rows.address), key);
      const uint32_t high = __shfl_sync(0xffffffff, uint32_t(rows.address >> 32), key);
      const auto* const row = reinterpret_cast<const std::byte*>(uint64_t{high} << 32 | low);
      ptx::load_constant(row + first, raw[i]);
    }
  }

  template <int Batch, int Odd>
  __device__ __forceinline__ void convert(const Rows& rows, Raw& raw) {
    static_assert(kBatchSlabs == Ring::kHalfSlabs);
    constexpr int kQuad = Batch / kOfQuad, kHalf = Batch == kRopeBatch ? 1 : kQuad;
    if constexpr (Batch % kOfQuad == 0 && Batch != kRopeBatch) ring_.wait_empty(Odd, kHalf);
    const uint32_t to = place_of<Batch>(Odd);
#pragma unroll
    for (int i = 0; i < kCount<Batch>; ++i) {
      const auto to_key = uint32_t(i * kDistance<Batch> * kRowBytes);
      const auto turn = uint32_t(i * kDistance<Batch> % 8 * tile::kChunkBytes);
      const int key = first_key<Batch>() + i * kDistance<Batch>;
      const bool exists = rows.exist >> key & 1;
#pragma unroll
      for (uint32_t& word : raw[i]) word = exists ? word : 0;
      if constexpr (Batch == kRopeBatch) {
        ptx::st_shared_b32x4((to ^ turn) + to_key, raw[i]);
      } else {
        const float of_key =
            __shfl_sync(0xffffffff, rows.scales[kQuad], key + ptx::lane() / 16 * 16);
        const float scale = exists ? of_key : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t eight[4];
#pragma unroll
          for (int four = 0; four < 2; ++four) {
            ptx::e4m3_to_bf16(raw[i][half * 2 + four], scale, eight[four * 2], eight[four * 2 + 1]);
          }
          ptx::st_shared_b32x4((to ^ turn ^ uint32_t(half * tile::kChunkBytes)) + to_key, eight);
        }
      }
    }
    if constexpr (Batch + 1 == kOfQuad || Batch + 1 == kBatches) {
      ptx::fence_proxy_async();
      __syncwarp();
      if (leads_warp()) ptx::mbarrier_arrive(ring_.full(Odd, kHalf));
    }
  }

  // Address of the lane's first chunk of a batch. Chunks of other keys and of the second half of 16
  // channels lie at an exclusive or of what the swizzle turns (layout.h).
  template <int Batch>
  __device__ __forceinline__ uint32_t place_of(int odd) const {
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    static_assert(kSlab.row_bytes() == kRowBytes);
    const int slab =
        Batch == kRopeBatch ? kValueSlabs : Batch / kOfQuad * kBatchSlabs + ptx::lane() / 8;
    const int chunk =
        Batch == kRopeBatch ? ptx::lane() % kRopeThreads : ptx::lane() % kSlabThreads * 2;
    const int row = first_key_ + first_key<Batch>();
    return ring_.slab(odd, slab) +
           uint32_t(row * kRowBytes + kSlab.swizzled_chunk(chunk, row) * tile::kChunkBytes);
  }

  const LatentParams& params_;
  const int first_key_;          // of the warp
  const LatentKeys<1, 0> keys_;  // the key that this lane looks for
  Ring ring_;
};

}  // namespace fa3::hopper
