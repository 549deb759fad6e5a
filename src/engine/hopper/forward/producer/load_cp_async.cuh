// SPDX-License-Identifier: Apache-2.0
// Keys and values copied by threads. TMA takes as long for a box of one row as for one of
// many; so the warps of the producer's warpgroup that load nothing copy the rows of small pages, 16
// bytes a thread, to where TMA would have put them. For few queries they do so in any case,
// since more of their copies are on the way at a time. They go by the work tiles that the consumers
// get, and never wait for a copy: a stage's barrier counts an arrival of every thread, which the
// hardware makes when the thread's copies are there. Next: forward/consumer/consumer.cuh.
#pragma once

#include "engine/hopper/forward/producer/load_tma_pages.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/cp_async.cuh"

namespace fa3::hopper {

// The producer's part: a stage's barrier waits for its arrival all the same, so it draws and
// announces tiles no earlier than it would load them.
template <Kernel C>
class CpAsyncKv : public DenseKv<C> {
 public:
  using typename DenseKv<C>::Block;
  using DenseKv<C>::DenseKv;
  static constexpr bool kUsesTma = false;

  __device__ __forceinline__ void load_k(const Block&) { this->leave_to_cp_async(); }
  __device__ __forceinline__ void load_v(const Block&) { this->leave_to_cp_async(); }
};

// One of the warps: of every tile, it copies each third group of eight rows.
template <Kernel C>
class CpAsyncLoader {
 public:
  __device__ __forceinline__ CpAsyncLoader(const ForwardParams& params, SmemPlan<C>& smem,
                                           SmemAddresses<C> at, int warp)
      : params_(params),
        smem_(smem),
        at_(at),
        warp_(warp),
        pages_of_block_(int(C.shape.block_n / params.cp_async.page_size)),
        rows_of_block_(int(C.shape.block_n % params.cp_async.page_size)) {}

  static __device__ __forceinline__ bool takes_part(const ForwardParams& params) {
    return uses_cp_async<C>(params);
  }
  static __device__ __forceinline__ void init_pipelines(SmemAddresses<C> at, int consumers) {
    at.kv_pipeline().init(consumers, 1 + kHelperWarps * ptx::kLanes);
  }

  // The order of KvLoader::load(): K of a block, then V of the block before, across tiles.
  __device__ __forceinline__ void run() {
    Places delayed{};
    int delayed_head = 0;
    bool has_delayed_v = false;
    for (;;) {
      at_.work_tile_pipeline().wait_full(work_tile_);
      const WorkTileOf<C>& work = smem_.work_tiles[work_tile_.stage()];
      int block = work.num_blocks - 1;
      const TileKeys keys = keys_of<C>(params_, work);
      __syncwarp();  // every lane has read
      if (ptx::kEveryLaneArrives || ptx::lane() == 0)
        at_.work_tile_pipeline().release(work_tile_.stage());
      work_tile_.advance();
      if (block < 0) break;
      const int32_t* table = params_.paged.table + keys.batch * params_.paged.table_stride;
      if constexpr (kFewInstructions) table = ptx::summed(table);
      Places next = places_of(keys, block);
#pragma unroll 1
      for (; block >= 0; --block) {
        const Places now = next;
        // On its way while this block is copied.
        if (block > 0) next = places_before(now, keys, table, block - 1);
        copy<C.tiles_in_smem().k>(params_.cp_async.k, now, keys.kv_head);
        if (has_delayed_v) copy<C.tiles_in_smem().v>(params_.cp_async.v, delayed, delayed_head);
        delayed = now;
        delayed_head = keys.kv_head;
        has_delayed_v = true;
      }
    }
    if (has_delayed_v) copy<C.tiles_in_smem().v>(params_.cp_async.v, delayed, delayed_head);
    ptx::cp_async_wait_all();
  }

 private:
  static constexpr int kGroup = tile::kSwizzleRows;  // rows
  static constexpr int kGroups = (C.shape.block_n / kGroup + kHelperWarps - 1) / kHelperWarps;
  static constexpr int kKeys = (kGroups * kGroup + ptx::kLanes - 1) / ptx::kLanes;  // of a lane
  static constexpr int kNoPage = -1;
  static constexpr unsigned kMissing = 1u << 31;

  // Beside a softmax that waits for the instructions of these warps, few are better. Where memory
  // alone is waited for they are as they come: of one sequence, one token's call took 1% longer
  // with fewer.
  static constexpr bool kFewInstructions =
      C.kv_loader() != KvLoaderKind::kCpAsync || C.consumers() > 1;

  // Where some of the warp's keys of a block lie: number i * kLanes + lane, counted through its
  // groups.
  struct Places {
    int entry[kKeys];  // of the page table
    int row[kKeys];    // in the page
    int page[kKeys];
  };

  // The lane's key number `i`; those of the last warps reach past the block.
  __device__ __forceinline__ int row_in_block(int i) const {
    const int number = i * ptx::kLanes + ptx::lane();
    return (number / kGroup * kHelperWarps + warp_) * kGroup + number % kGroup;
  }

  // Keys past the sequence's end look at no page.
  __device__ __forceinline__ Places places_of(const TileKeys& keys, int block) const {
    const PagedKeys& paged = params_.paged;
    const int32_t* const table = paged.table + keys.batch * paged.table_stride;
    const unsigned page_size = params_.cp_async.page_size;
    const int first = block * C.shape.block_n;
    const int left = keys.count - first, used = left < C.shape.block_n ? left : C.shape.block_n;
    Places places;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int row = row_in_block(i);
      const unsigned key = unsigned(keys.begin + first + row), entry = key / page_size;
      places.row[i] = int(key - entry * page_size);
      places.entry[i] = int(entry);
      places.page[i] = kNoPage;
      if (row < used) places.page[i] = paged.page_size > 0 ? table[entry] : keys.batch;
    }
    return places;
  }

  // Places of a whole block, from those of the block behind it. A division for each key would be a
  // sixth of all that the warp does, and what it does the softmax beside it waits for.
  __device__ __forceinline__ Places places_before(const Places& next, const TileKeys& keys,
                                                  const int32_t* table, int block) const {
    if constexpr (!kFewInstructions) {
      return places_of(keys, block);
    } else {
      Places places;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const int row = next.row[i] - rows_of_block_;
        places.row[i] = row < 0 ? row + int(params_.cp_async.page_size) : row;
        places.entry[i] = next.entry[i] - pages_of_block_ - (row < 0 ? 1 : 0);
        places.page[i] = kNoPage;
        if (row_in_block(i) < C.shape.block_n) {
          places.page[i] = params_.paged.page_size > 0 ? table[places.entry[i]] : keys.batch;
        }
      }
      return places;
    }
  }

  // Rows that do not exist, and those of pages that do not, are zeros.
  template <tile::TileLayout Layout>
  __device__ __forceinline__ void copy(const CpAsyncRows& from, const Places& places, int head) {
    constexpr int kLanesOfRow = Layout.row_bytes() / tile::kChunkBytes;  // of a slab
    constexpr int kRows = kWarpSize / kLanesOfRow;  // that the lanes copy at once
    const int own_row = ptx::lane() / kLanesOfRow, chunk = ptx::lane() % kLanesOfRow;
    const int own_column = chunk * kCopyColumns;
    const unsigned char* begin = from.data + head * from.head_bytes + chunk * tile::kChunkBytes;
    if constexpr (kFewInstructions) begin = ptx::summed(begin);
    unsigned unit[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const bool exists = unsigned(places.page[i]) < unsigned(params_.cp_async.num_pages);
      unit[i] = exists ? unsigned(places.page[i]) * from.page_units +
                             unsigned(places.row[i]) * from.row_units
                       : kMissing;
    }
    const uint32_t full = at_.kv_pipeline().full(kv_.stage()), to = at_.kv(kv_.stage());
    at_.kv_pipeline().wait_empty(kv_);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = i * kHelperWarps + warp_;
      if (i + 1 == kGroups && group >= Layout.rows / kGroup) break;
#pragma unroll
      for (int row = 0; row < kGroup; row += kRows) {
        const int number = i * kGroup + row;
        const unsigned at =
            __shfl_sync(0xffffffff, unit[number / ptx::kLanes], number % ptx::kLanes + own_row);
        const unsigned char* const source = begin + uint64_t{at & ~kMissing} * from.unit_bytes;
        const uint32_t target = to + Layout.chunk_offset(row + own_row, own_column) +
                                group * kGroup * Layout.row_bytes();
#pragma unroll
        for (int slab = 0; slab < Layout.slabs(); ++slab) {
          const bool exists =
              at < kMissing && own_column + slab * Layout.slab_columns() < from.columns;
          ptx::cp_async_16(target + slab * Layout.slab_bytes(), source + slab * Layout.row_bytes(),
                           exists);
        }
      }
    }
    ptx::cp_async_mbarrier_arrive(full);
    kv_.advance();
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const int warp_;
  const int pages_of_block_, rows_of_block_;  // pages of a block, and rows beyond them
  WorkTileState work_tile_;
  PipelineState<C.shape.kv_stages> kv_;
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kPagesOrCpAsync> : PlainKv {
  using Loads = WarpPages<C>;
  using Scales = NoTileScales<C>;
  using Helper = CpAsyncLoader<C>;
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kCpAsync> : PlainKv {
  using Loads = CpAsyncKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = CpAsyncLoader<C>;
};

}  // namespace fa3::hopper
