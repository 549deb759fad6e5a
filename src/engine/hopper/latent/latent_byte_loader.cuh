// SPDX-License-Identifier: Apache-2.0
// The two loader warpgroups for rows of bytes (Group128). A thread copies 16 bytes at a time to a
// queue of its own in shared memory, and later turns what has arrived into bf16 in the ring: no
// thread waits for another's copies. e4m3 becomes bf16 exactly, without its scale, which the
// consumer multiplies scores and P by: K and V enter the products exactly, P times the scale is
// rounded.
//
// A block has batches: four slabs of values, the other four, its rope channels. Read, convert,
// fence and arrive follow each other once a batch, and eight warps have few others to run
// meanwhile: a slab at a time took 1.4 times as long (docs/lab/mla.md). Next: latent_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/e4m3.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentByteLoader {
 public:
  struct Smem {
    alignas(16) unsigned char raw[C.raw_batches()][Group128::kBatchBytes];
  };

  __device__ __forceinline__ LatentByteLoader(const LatentParams& params,
                                              const Pipeline<C.stages()>& pipeline, uint32_t slabs,
                                              Smem& smem, uint32_t scales, int thread)
      : chunk_(thread % kSlabThreads),
        slab_(thread % kWarpSize / (kSlabThreads * kKeysOfWarp)),
        first_key_(thread / kWarpSize * kKeysOfWarp + thread / kSlabThreads % kKeysOfWarp),
        keys_(params, first_key_ + slab_ * kKeysAtOnce),
        pipeline_(pipeline),
        slabs_(slabs),
        raw_(ptx::cvta_to_shared(smem.raw) + uint32_t(thread) * tile::kChunkBytes),
        scales_(scales) {}

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[1];
    keys_.look_up(tile, segment.first, slots);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      const auto place = keys_.place_of(block, 0, slots[0]);
      const std::byte* rows[kOwn];
      bool exist[kOwn];
      share(place.latent, place.exists, rows, exist);
      if (block + 1 < segment.end) keys_.look_up(tile, block + 1, slots);
#pragma unroll 1
      for (int batch = 0; batch < C.batches_of_block(); ++batch) {
        if (pending_ == C.raw_batches()) {
          ptx::cp_async_wait_group<C.raw_batches() - 1>();
          convert();
        }
        copy(rows, exist, batch);
      }
    }
  }

  // Converts what is still on its way.
  __device__ __forceinline__ void finish() {
    ptx::cp_async_wait_all();
    while (pending_ > 0) convert();
  }

 private:
  // A warp has 256 bytes of two neighbouring keys at once, four lanes the 64 of a slab. So eight
  // lanes store to one slab and rows of both parities: no bank conflicts.
  static constexpr int kSlabThreads = kSlabChannels / tile::kChunkBytes, kKeysOfWarp = 2;
  static constexpr int kKeysAtOnce = C.loader_threads() / kWarpSize * kKeysOfWarp;
  static constexpr int kOwn = kLatentBlockKeys / kKeysAtOnce;  // keys of a thread
  static constexpr int kRopeBatch = kValueSlabs / Group128::kBatchSlabs;
  static constexpr int kCopyDistance = C.loader_threads() * tile::kChunkBytes;
  static_assert(kOwn * kCopyDistance == Group128::kBatchBytes && kOwn == Group128::kBatchSlabs);

  // Lanes of slab i have looked for the key number i of all lanes with their place in a slab.
  __device__ __forceinline__ void share(const std::byte* row, bool exists,
                                        const std::byte* (&rows)[kOwn], bool (&exist)[kOwn]) const {
    const unsigned all = 0xffffffff, found = __ballot_sync(all, exists);
    const auto address = reinterpret_cast<uint64_t>(row);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int lane = i * kSlabThreads * kKeysOfWarp + ptx::lane() % (kSlabThreads * kKeysOfWarp);
      const uint32_t low = __shfl_sync(all, uint32_t(address), lane);
      const uint32_t high = __shfl_sync(all, uint32_t(address >> 32), lane);
      rows[i] = reinterpret_cast<const std::byte*>(uint64_t{high} << 32 | low);
      exist[i] = found >> lane & 1;
    }
  }

  // The rope channels fill half a batch, by the lanes of its first two slabs.
  __device__ __forceinline__ bool has_rope() const {
    return slab_ < 2;
  }

  __device__ __forceinline__ void copy(const std::byte* const (&rows)[kOwn],
                                       const bool (&exist)[kOwn], int batch) {
    const uint32_t to = raw_ + uint32_t(next_raw_) * Group128::kBatchBytes;
    const int chunk = slab_ * kSlabThreads + chunk_;
    const int channel =
        batch == kRopeBatch ? Group128::kRopeOffset : batch * Group128::kBatchSlabs * kSlabChannels;
    if (batch < kRopeBatch || has_rope()) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        ptx::cp_async_16(to + uint32_t(i * kCopyDistance),
                         rows[i] + channel + chunk * tile::kChunkBytes, exist[i]);
      }
    }
    if (batch == 0) {
      if (chunk == 0) {
        const uint32_t slot = scales_ + uint32_t(blocks_ % Group128::kScaleSlots *
                                                 kLatentBlockKeys * Group128::kScaleBytes);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          ptx::cp_async_16(slot + uint32_t((first_key_ + i * kKeysAtOnce) * Group128::kScaleBytes),
                           rows[i] + Group128::kScaleOffset, exist[i]);
        }
      }
      ++blocks_;
    }
    ptx::cp_async_commit_group();
    next_raw_ = next_raw_ + 1 == C.raw_batches() ? 0 : next_raw_ + 1;
    ++pending_;
  }

  // The oldest batch, which has arrived. Scales that came with it are there for whoever waits for
  // its slabs. A slot of scales is free again by the time it is copied to: a copy is at most
  // raw_batches() and stages() ahead of the slabs that the consumer has released; a block has two
  // batches and eight stages, or more.
  __device__ __forceinline__ void convert() {
    static_assert((C.raw_batches() + 1) / 2 + (C.stages() + 7) / 8 + 2 <= Group128::kScaleSlots);
    if (oldest_batch_ == kRopeBatch) {
      pipeline_.wait_empty(at_);
      if (has_rope()) {
        uint32_t rope[kOwn][4];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) read(i, rope[i]);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) store(i, 0, slab_ * kSlabThreads + chunk_, rope[i]);
      }
      announce<1>();
    } else {
      uint32_t values[kOwn][4], converted[kOwn][2][4];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) read(i, values[i]);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int four = 0; four < 4; ++four) {
          uint32_t* const to = converted[i][four / 2] + four % 2 * 2;
          ptx::e4m3_to_bf16(values[i][four], to[0], to[1]);
        }
      }
      wait_for_slabs();
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        store(i, slab_, 2 * chunk_, converted[i][0]);
        store(i, slab_, 2 * chunk_ + 1, converted[i][1]);
      }
      announce<Group128::kBatchSlabs>();
    }
    oldest_raw_ = oldest_raw_ + 1 == C.raw_batches() ? 0 : oldest_raw_ + 1;
    oldest_batch_ = oldest_batch_ + 1 == C.batches_of_block() ? 0 : oldest_batch_ + 1;
    --pending_;
  }

  // Looks at all before it waits for one: most often they are empty.
  __device__ __forceinline__ void wait_for_slabs() const {
    bool empty = true;
    PipelineState<C.stages()> at = at_;
#pragma unroll
    for (int i = 0; i < Group128::kBatchSlabs; ++i, at.advance()) {
      empty &= pipeline_.is_empty(at);
    }
    if (empty) return;
    at = at_;
#pragma unroll
    for (int i = 0; i < Group128::kBatchSlabs; ++i, at.advance()) pipeline_.wait_empty(at);
  }

  // What the thread has copied of its key i, in the oldest batch.
  __device__ __forceinline__ void read(int i, uint32_t (&bytes)[4]) const {
    ptx::ld_shared_b32x4(
        raw_ + uint32_t(oldest_raw_) * Group128::kBatchBytes + uint32_t(i * kCopyDistance), bytes);
  }

  // Eight channels of the thread's key i, in slab number `slab` of the batch.
  __device__ __forceinline__ void store(int i, int slab, int chunk,
                                        const uint32_t (&eight)[4]) const {
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    uint32_t stage = at_.stage() + uint32_t(slab);
    if (stage >= uint32_t(C.stages())) stage -= C.stages();
    const int key = first_key_ + i * kKeysAtOnce;
    ptx::st_shared_b32x4(slabs_ + stage * kSlabBytes +
                             uint32_t(key * kSlab.row_bytes() +
                                      kSlab.swizzled_chunk(chunk, key) * tile::kChunkBytes),
                         eight);
  }

  // The next Count slabs have this warp's keys.
  template <int Count>
  __device__ __forceinline__ void announce() {
    ptx::fence_proxy_async();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      if (leads_warp()) ptx::mbarrier_arrive(pipeline_.full(at_.stage()));
      at_.advance();
    }
  }

  const int chunk_, slab_;  // the thread's, of a batch: 16 bytes of a key and a slab
  const int first_key_;
  const LatentKeys<1, 0> keys_;  // the one of the thread's keys that it looks for
  const Pipeline<C.stages()> pipeline_;
  const uint32_t slabs_, raw_, scales_;
  PipelineState<C.stages()> at_;
  int pending_ = 0;  // batches that are copied and not converted
  int next_raw_ = 0, oldest_raw_ = 0, oldest_batch_ = 0;
  unsigned blocks_ = 0;
};

}  // namespace fa3::hopper
