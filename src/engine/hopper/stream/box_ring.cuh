// SPDX-License-Identifier: Apache-2.0
// The slots of a warp, filled by the copy engine, a box a page: where a slot's keys lie in few of them.
// Next: warp_rows.cuh.
#pragma once

#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/stream/slots.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class BoxRing {
  using Slots = StreamSlots<C>;

 public:
  struct Barriers {
    uint64_t k[Slots::kSlots], v[Slots::kSlots];
  };

  __device__ __forceinline__ BoxRing(const ForwardParams& params, uint32_t slots, uint32_t barriers,
                                     typename Slots::Turns turns)
      : params_(params),
        slots_(slots),
        barriers_(barriers),
        turns_(turns),
        boxes_log2_(__ffs(Slots::kKeys / params.paged.box_rows) - 1) {
    if (ptx::lane() == 0) {
#pragma unroll
      for (int i = 0; i < 2 * Slots::kSlots; ++i) ptx::mbarrier_init(barriers + i * kBarrier, 1);
      ptx::fence_mbarrier_init();
      ptx::prefetch_tensormap(params.k_map);
      ptx::prefetch_tensormap(params.v_map);
    }
    __syncwarp();
  }

  // Finds where the first keys lie, whichever of them there are.
  __device__ __forceinline__ void look_up(const StreamedKeys& keys) {
    keys_ = keys;
    asked_ = 0;
    look_up();
  }
  // Asks for the first slots' rows, of so many in all. All slots are free.
  __device__ __forceinline__ void start(int end, int steps) {
    keys_.end = end;
    to_ask_ = steps;
    left_ = end - keys_.begin - turns_.first_key;
#pragma unroll 1
    for (int i = 0; i < Slots::kSlots; ++i) {
      release_k();
      release_v();
    }
  }

  // K of the next slot, V of it: when they are there, where they lie.
  __device__ __forceinline__ uint32_t wait_for_k() const {
    ptx::mbarrier_wait_parity(k_barrier(), phases_ >> slot_ & 1);
    return k();
  }
  __device__ __forceinline__ uint32_t wait_for_v() {
    ptx::mbarrier_wait_parity(v_barrier(), phases_ >> slot_ & 1);
    phases_ ^= 1u << slot_;
    if (left_ < Slots::kKeys) clear_values(left_);
    left_ -= turns_.step_keys;
    return v();
  }

  // They have been read: rows further on are asked for.
  __device__ __forceinline__ void release_k() {
    __syncwarp();
    if (to_ask_ == 0) return;
    ask(params_.k_map, Slots::kK, k(), k_barrier());
  }
  __device__ __forceinline__ void release_v() {
    __syncwarp();
    if (to_ask_ > 0) {
      ask(params_.v_map, Slots::kV, v(), v_barrier());
      --to_ask_;
      if ((++asked_ << boxes_log2_) % ptx::kLanes == 0) look_up();
    }
    slot_ = slot_ + 1 == Slots::kSlots ? 0 : slot_ + 1;
  }

 private:
  static constexpr uint32_t kBarrier = sizeof(uint64_t);
  static constexpr int kNoPage = -1;

  __device__ __forceinline__ uint32_t k() const {
    return slots_ + unsigned(slot_) * Slots::kBytes;
  }
  __device__ __forceinline__ uint32_t v() const {
    return k() + Slots::kK.bytes();
  }
  __device__ __forceinline__ uint32_t k_barrier() const {
    return barriers_ + unsigned(slot_) * kBarrier;
  }
  __device__ __forceinline__ uint32_t v_barrier() const {
    return k_barrier() + Slots::kSlots * kBarrier;
  }

  // Where the keys of the next slots' boxes lie, one a lane. None is looked up from keys_.most on.
  __device__ __forceinline__ void look_up() {
    const PagedKeys& paged = params_.paged;
    const int slot = ptx::lane() >> boxes_log2_, box = ptx::lane() - (slot << boxes_log2_);
    // Unsigned: it may lie beyond the largest length.
    const unsigned key = unsigned(keys_.begin + turns_.first_key + box * paged.box_rows) +
                         unsigned(asked_ + slot) * unsigned(turns_.step_keys);
    page_ = kNoPage;
    if (key >= unsigned(keys_.most)) return;
    page_ = keys_.batch;
    row_ = int(key);
    if (paged.page_size > 0) {
      const unsigned entry = params_.gathered.by_page_size.quotient(key);
      page_ = paged.table[keys_.batch * paged.table_stride + entry];
      row_ = int(key - entry * unsigned(paged.page_size));
    }
  }

  // A page that does not exist reads as zeros.
  __device__ __forceinline__ void ask(const CUtensorMap& map, tile::TileLayout layout, uint32_t to,
                                      uint32_t barrier) const {
    const int box = ptx::lane(), owner = (asked_ << boxes_log2_) + box;  // modulo the lanes
    const int page = __shfl_sync(0xffffffff, page_, owner);
    const int row = __shfl_sync(0xffffffff, row_, owner);
    if (box == 0) ptx::mbarrier_arrive_expect_tx(barrier, uint32_t(layout.bytes()));
    __syncwarp();
    if (box < 1 << boxes_log2_) {
      ptx::cp_async_bulk_tensor_load(
          to + uint32_t(box * params_.paged.box_rows * layout.row_bytes()), map,
          {.column = 0, .row = 0, .head = keys_.kv_head, .batch = page, .inner = row}, barrier);
    }
  }

  // Rows past the sequence's end hold anything, and NaN times a weight of zero is NaN.
  __device__ __forceinline__ void clear_values(int from) {
    constexpr tile::TileLayout kV = Slots::kV;
    constexpr int kChunkColumns = tile::kChunkBytes / kV.element_bytes;
    constexpr int kChunks = kV.columns / kChunkColumns;
    constexpr uint32_t kZeros[4] = {};
#pragma unroll 1
    for (int i = from * kChunks + ptx::lane(); i < Slots::kKeys * kChunks; i += ptx::kLanes) {
      ptx::st_shared_b32x4(v() + kV.chunk_offset(i / kChunks, i % kChunks * kChunkColumns), kZeros);
    }
    ptx::fence_proxy_async();  // the copy engine writes there next
    __syncwarp();
  }

  const ForwardParams& params_;
  const uint32_t slots_, barriers_;
  const typename Slots::Turns turns_;
  StreamedKeys keys_{};
  const int boxes_log2_;          // of a slot
  int page_ = kNoPage, row_ = 0;  // of the lane's box: those of the last look on
  int asked_ = 0, to_ask_ = 0;    // slots' rows
  int left_ = 0;                  // keys from the current slot's first on
  int slot_ = 0;
  uint32_t phases_ = 0;  // a bit for each slot
};

}  // namespace fa3::hopper
