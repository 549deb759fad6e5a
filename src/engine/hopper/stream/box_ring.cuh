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
    uint64_t of_slots[Slots::kSlots];
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
      for (int i = 0; i < Slots::kSlots; ++i) ptx::mbarrier_init(barrier(i), 1);
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
  // Asks for the first slots' rows, of so many steps, each with a slot of K and one of V. All slots are free.
  __device__ __forceinline__ void start(int end, int steps) {
    keys_.end = end;
    to_ask_ = 2 * steps;
    left_ = end - keys_.begin - turns_.first_key;
    asked_ = min(to_ask_, Slots::kSlots);
    // At once, each lane its own box: one slot after the other would take as long as their bytes.
    const int step = ptx::lane() >> boxes_log2_, box = ptx::lane() - (step << boxes_log2_);
    const auto slot_of = [&](int n) { return (slot_ + n) % Slots::kSlots; };
    if (2 * step < asked_) ask(params_.k_map, Slots::kK, slot_of(2 * step), box);
    if (2 * step + 1 < asked_) ask(params_.v_map, Slots::kV, slot_of(2 * step + 1), box);
  }

  // The next slot's K, or V: when it is there, where it lies.
  __device__ __forceinline__ uint32_t wait_for_k() {
    return wait();
  }
  __device__ __forceinline__ uint32_t wait_for_v() {
    const uint32_t v = wait();
    if (left_ < Slots::kKeys) clear_values(v, left_);
    left_ -= turns_.step_keys;
    return v;
  }

  // It has been read: a slot further on is asked for.
  __device__ __forceinline__ void release_k() {
    release<Slots::kSlots % 2 == 0>();
  }
  __device__ __forceinline__ void release_v() {
    release<Slots::kSlots % 2 != 0>();
  }

 private:
  static constexpr uint32_t kBarrier = sizeof(uint64_t);
  static constexpr int kNoPage = -1;

  __device__ __forceinline__ uint32_t barrier(int slot) const {
    return barriers_ + unsigned(slot) * kBarrier;
  }

  __device__ __forceinline__ uint32_t wait() {
    ptx::mbarrier_wait_parity(barrier(slot_), phases_ >> slot_ & 1);
    phases_ ^= 1u << slot_;
    return slots_ + unsigned(slot_) * Slots::kBytes;
  }

  template <bool AsksForK>
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (asked_ < to_ask_) {
      const int owner = (asked_ / 2 << boxes_log2_) % ptx::kLanes;  // of the slot's first box
      const int box = ptx::lane() - owner;
      if (unsigned(box) < 1u << boxes_log2_) {
        if constexpr (AsksForK) {
          ask(params_.k_map, Slots::kK, slot_, box);
        } else {
          ask(params_.v_map, Slots::kV, slot_, box);
        }
      }
      ++asked_;
      if (!AsksForK && (asked_ / 2 << boxes_log2_) % ptx::kLanes == 0) look_up();
    }
    slot_ = slot_ + 1 == Slots::kSlots ? 0 : slot_ + 1;
  }

  // Where the keys of the next steps' boxes lie, one a lane. None is looked up from keys_.most on.
  __device__ __forceinline__ void look_up() {
    const PagedKeys& paged = params_.paged;
    const int step = ptx::lane() >> boxes_log2_, box = ptx::lane() - (step << boxes_log2_);
    // Unsigned: it may lie beyond the largest length.
    const unsigned key = unsigned(keys_.begin + turns_.first_key + box * paged.box_rows) +
                         unsigned(asked_ / 2 + step) * unsigned(turns_.step_keys);
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

  // By the lane that knows where the box lies. A page that does not exist reads as zeros.
  __device__ __forceinline__ void ask(const CUtensorMap& map, tile::TileLayout layout, int slot,
                                      int box) const {
    if (box == 0) ptx::mbarrier_arrive_expect_tx(barrier(slot), uint32_t(layout.bytes()));
    ptx::cp_async_bulk_tensor_load(
        slots_ + uint32_t(slot * Slots::kBytes + box * params_.paged.box_rows * layout.row_bytes()),
        map, {.column = 0, .row = 0, .head = keys_.kv_head, .batch = page_, .inner = row_},
        barrier(slot));
  }

  // Rows past the sequence's end hold anything, and NaN times a weight of zero is NaN.
  __device__ __forceinline__ void clear_values(uint32_t v, int from) const {
    constexpr tile::TileLayout kV = Slots::kV;
    constexpr int kChunkColumns = tile::kChunkBytes / kV.element_bytes;
    constexpr int kChunks = kV.columns / kChunkColumns;
    constexpr uint32_t kZeros[4] = {};
#pragma unroll 1
    for (int i = from * kChunks + ptx::lane(); i < Slots::kKeys * kChunks; i += ptx::kLanes) {
      ptx::st_shared_b32x4(v + kV.chunk_offset(i / kChunks, i % kChunks * kChunkColumns), kZeros);
    }
    ptx::fence_proxy_async();  // the copy engine writes there next
    __syncwarp();
  }

  const ForwardParams& params_;
  const uint32_t slots_, barriers_;
  const typename Slots::Turns turns_;
  StreamedKeys keys_{};
  const int boxes_log2_;          // of a slot
  int page_ = kNoPage, row_ = 0;  // of the lane's box, among those of the last look on
  int asked_ = 0, to_ask_ = 0;    // slots' rows
  int left_ = 0;                  // keys from the current slot's first on
  int slot_ = 0;
  uint32_t phases_ = 0;  // a bit for each slot
};

}  // namespace fa3::hopper
