// SPDX-License-Identifier: Apache-2.0
// The stages of a warp, filled by its own lanes, 16 bytes at a time: where pages have any size. The
// TMA would take as long for a row as for a box of many. Next: warp_rows.cuh.
#pragma once

#include "engine/hopper/decode/stages.cuh"
#include "engine/hopper/ptx/cp_async.cuh"

namespace fa3::hopper {

template <Kernel C>
class CpAsyncKvLoader {
  using Stages = DecodeStages<C>;

 public:
  __device__ __forceinline__ CpAsyncKvLoader(const ForwardParams& params, uint32_t stages,
                                             typename Stages::Keys warp_keys)
      : params_(params),
        stages_(stages),
        warp_keys_(warp_keys),
        pages_of_step_(int(params.cp_async.by_page_size.quotient(unsigned(warp_keys.step_keys)))),
        rows_of_step_(warp_keys.step_keys - pages_of_step_ * int(params.cp_async.page_size)) {}

  __device__ __forceinline__ void look_up(const DecodeKeys& keys) { keys_ = keys; }
  // Asks for the first stages' rows. Each of the `steps` steps has a stage of K and one of V. All
  // stages are free.
  __device__ __forceinline__ void start(int end, int steps) {
    keys_.end = end;
    to_ask_ = steps;
    key_ = unsigned(keys_.begin + warp_keys_.first_key);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const unsigned key = key_ + unsigned(i * ptx::kLanes + ptx::lane());
      entry_[i] = int(params_.cp_async.by_page_size.quotient(key));
      row_[i] = int(key - unsigned(entry_[i]) * params_.cp_async.page_size);
    }
#pragma unroll
    for (Places& places : ahead_) places = next_places();
#pragma unroll 1
    for (int i = 0; i < Stages::kStages / 2; ++i) {
      release<true>();
      release<false>();
    }
    if constexpr (Stages::kStages % 2 != 0) release<true>();
  }

  // The next stage's K, or V: when it is there, where it lies.
  __device__ __forceinline__ uint32_t wait_for_k() const {
    return wait();
  }
  __device__ __forceinline__ uint32_t wait_for_v() const {
    return wait();
  }

  // The stage has been read: a later one is asked for. A group of copies may have none.
  __device__ __forceinline__ void release_k() {
    release<Stages::kStages % 2 == 0>();
  }
  __device__ __forceinline__ void release_v() {
    release<Stages::kStages % 2 != 0>();
  }

 private:
  static constexpr int kOwn = (Stages::kKeys + ptx::kLanes - 1) / ptx::kLanes;  // keys of a lane
  static constexpr int kAhead = (Stages::kStages + 1) / 2;                      // steps
  static constexpr int kNoPage = -1;
  static constexpr unsigned kMissing = 1u << 31;

  // Where the lane's keys of a step lie: number i * kLanes + lane.
  struct Places {
    int page[kOwn];
    int row[kOwn];  // in the page
  };

  __device__ __forceinline__ uint32_t stage() const {
    return stages_ + unsigned(stage_) * Stages::kBytes;
  }

  __device__ __forceinline__ uint32_t wait() const {
    ptx::cp_async_wait_group<Stages::kStages - 1>();
    __syncwarp();
    return stage();
  }

  template <bool AsksForK>
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (to_ask_ > 0) {
      if constexpr (AsksForK) {
        copy<Stages::kK>(params_.cp_async.k, stage());
      } else {
        copy<Stages::kV>(params_.cp_async.v, stage());
#pragma unroll
        for (int i = 0; i + 1 < kAhead; ++i) ahead_[i] = ahead_[i + 1];
        ahead_[kAhead - 1] = next_places();
        --to_ask_;
      }
    }
    ptx::cp_async_commit_group();
    stage_ = stage_ + 1 == Stages::kStages ? 0 : stage_ + 1;
  }

  // The step after all that were looked up. Keys past the end look at no page.
  __device__ __forceinline__ Places next_places() {
    const PagedKeys& paged = params_.paged;
    const int32_t* const table = paged.table + keys_.batch * paged.table_stride;
    const int page_size = int(params_.cp_async.page_size);
    Places places;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      places.row[i] = row_[i];
      places.page[i] = kNoPage;
      if (key_ + unsigned(i * ptx::kLanes + ptx::lane()) < unsigned(keys_.end)) {
        places.page[i] = paged.page_size > 0 ? table[entry_[i]] : keys_.batch;
      }
      row_[i] += rows_of_step_;
      entry_[i] += pages_of_step_;
      if (row_[i] >= page_size) row_[i] -= page_size, ++entry_[i];
    }
    key_ += unsigned(warp_keys_.step_keys);
    return places;
  }

  // Rows that do not exist, and those of pages that do not, are zeros.
  template <tile::TileLayout Layout>
  __device__ __forceinline__ void copy(const CpAsyncRows& from, uint32_t to) const {
    constexpr int kLanesOfRow = Layout.slabs() * Layout.row_bytes() / tile::kChunkBytes;
    constexpr int kRows = kWarpSize / kLanesOfRow;  // that the lanes copy at once
    constexpr int kChunkColumns = tile::kChunkBytes / Layout.element_bytes;
    const int own_row = ptx::lane() / kLanesOfRow;
    const int own_column = ptx::lane() % kLanesOfRow * kChunkColumns;
    const bool has_columns = own_column < from.columns;
    const unsigned char* const begin = ptx::summed(from.data + keys_.kv_head * from.head_bytes +
                                                   own_column * Layout.element_bytes);
    const uint32_t own = to + uint32_t(Layout.chunk_offset(own_row, own_column));
    unsigned unit[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool exists = unsigned(ahead_[0].page[i]) < unsigned(params_.cp_async.num_pages);
      unit[i] = exists ? unsigned(ahead_[0].page[i]) * from.page_units +
                             unsigned(ahead_[0].row[i]) * from.row_units
                       : kMissing;
    }
#pragma unroll
    for (int row = 0; row < Stages::kKeys; row += kRows) {
      const unsigned at =
          __shfl_sync(0xffffffff, unit[row / ptx::kLanes], row % ptx::kLanes + own_row);
      // Stages begin at multiples of the swizzle's period: what it flips are bits of the address.
      const uint32_t flipped = own ^ uint32_t(Layout.swizzled_chunk(0, row) * tile::kChunkBytes);
      ptx::cp_async_16(flipped + uint32_t(row * Layout.row_bytes()),
                       begin + uint64_t{at} * from.unit_bytes, at < kMissing && has_columns);
    }
  }

  const ForwardParams& params_;
  const uint32_t stages_;
  const typename Stages::Keys warp_keys_;
  const int pages_of_step_, rows_of_step_;  // whole pages, and rows of one more
  DecodeKeys keys_{};
  unsigned key_ = 0;  // the warp's first of the step that is looked up next; may lie beyond all
  int entry_[kOwn], row_[kOwn];  // of the page table, and in the page: the lane's keys of that step
  Places ahead_[kAhead];         // that were looked up before, but not asked for
  int to_ask_ = 0;               // steps whose V is not asked for yet
  int stage_ = 0;
};

}  // namespace fa3::hopper
