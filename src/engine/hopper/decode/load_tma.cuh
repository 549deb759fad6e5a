// SPDX-License-Identifier: Apache-2.0
// The stages of a warp, filled by TMA, a box a page: where a stage's keys lie in few of them.
// Next: warp_rows.cuh.
#pragma once

#include "engine/hopper/decode/stages.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper {

template <Kernel C>
class TmaKvLoader {
  using Stages = DecodeStages<C>;

 public:
  struct Barriers {
    uint64_t of_stages[Stages::kStages];
  };

  __device__ __forceinline__ TmaKvLoader(const ForwardParams& params, uint32_t stages,
                                         uint32_t barriers, typename Stages::Keys warp_keys)
      : params_(params),
        stages_(stages),
        barriers_(barriers),
        warp_keys_(warp_keys),
        boxes_log2_(__ffs(Stages::kKeys / params.paged.box_rows) - 1) {
    if (ptx::lane() == 0) {
#pragma unroll
      for (int i = 0; i < Stages::kStages; ++i) ptx::mbarrier_init(barrier(i), 1);
      ptx::fence_mbarrier_init();
      ptx::prefetch_tensormap(params.k_map);
      ptx::prefetch_tensormap(params.v_map);
    }
    __syncwarp();
  }

  // Finds where the first keys lie, whichever of them there are.
  __device__ __forceinline__ void look_up(const DecodeKeys& keys) {
    keys_ = keys;
    asked_ = 0;
    look_up();
  }
  // Asks for the first stages' rows. Each of the `steps` steps has a stage of K and one of V. All
  // stages are free.
  __device__ __forceinline__ void start(int end, int steps) {
    keys_.end = end;
    to_ask_ = 2 * steps;
    left_ = end - keys_.begin - warp_keys_.first_key;
    asked_ = min(to_ask_, Stages::kStages);
    // At once, each lane its own box: one stage after the other would take as long as their bytes.
    const int step = ptx::lane() >> boxes_log2_, box = ptx::lane() - (step << boxes_log2_);
    const auto stage_of = [&](int n) { return (stage_ + n) % Stages::kStages; };
    if (2 * step < asked_) ask(params_.k_map, Stages::kK, stage_of(2 * step), box);
    if (2 * step + 1 < asked_) ask(params_.v_map, Stages::kV, stage_of(2 * step + 1), box);
  }

  // The next stage's K, or V: when it is there, where it lies.
  __device__ __forceinline__ uint32_t wait_for_k() {
    return wait();
  }
  __device__ __forceinline__ uint32_t wait_for_v() {
    const uint32_t v = wait();
    if (left_ < Stages::kKeys) clear_values(v, left_);
    left_ -= warp_keys_.step_keys;
    return v;
  }

  // The stage has been read: a later one is asked for.
  __device__ __forceinline__ void release_k() {
    release<Stages::kStages % 2 == 0>();
  }
  __device__ __forceinline__ void release_v() {
    release<Stages::kStages % 2 != 0>();
  }

 private:
  static constexpr uint32_t kBarrier = sizeof(uint64_t);
  static constexpr int kNoPage = -1;

  __device__ __forceinline__ uint32_t barrier(int stage) const {
    return barriers_ + unsigned(stage) * kBarrier;
  }

  __device__ __forceinline__ uint32_t wait() {
    ptx::mbarrier_wait_parity(barrier(stage_), phases_ >> stage_ & 1);
    phases_ ^= 1u << stage_;
    return stages_ + unsigned(stage_) * Stages::kBytes;
  }

  template <bool AsksForK>
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (asked_ < to_ask_) {
      const int owner = (asked_ / 2 << boxes_log2_) % ptx::kLanes;  // of the stage's first box
      const int box = ptx::lane() - owner;
      if (unsigned(box) < 1u << boxes_log2_) {
        if constexpr (AsksForK) {
          ask(params_.k_map, Stages::kK, stage_, box);
        } else {
          ask(params_.v_map, Stages::kV, stage_, box);
        }
      }
      ++asked_;
      if (!AsksForK && (asked_ / 2 << boxes_log2_) % ptx::kLanes == 0) look_up();
    }
    stage_ = stage_ + 1 == Stages::kStages ? 0 : stage_ + 1;
  }

  // Where the keys of the next steps' boxes lie, one a lane. None is looked up from keys_.most on.
  __device__ __forceinline__ void look_up() {
    const PagedKeys& paged = params_.paged;
    const int step = ptx::lane() >> boxes_log2_, box = ptx::lane() - (step << boxes_log2_);
    // Unsigned: it may lie beyond the largest length.
    const unsigned key = unsigned(keys_.begin + warp_keys_.first_key + box * paged.box_rows) +
                         unsigned(asked_ / 2 + step) * unsigned(warp_keys_.step_keys);
    page_ = kNoPage;
    if (key >= unsigned(keys_.most)) return;
    page_ = keys_.batch;
    row_ = int(key);
    if (paged.page_size > 0) {
      const unsigned entry = params_.cp_async.by_page_size.quotient(key);
      page_ = paged.table[keys_.batch * paged.table_stride + entry];
      row_ = int(key - entry * unsigned(paged.page_size));
    }
  }

  // By the lane that knows where the box lies. A page that does not exist reads as zeros.
  __device__ __forceinline__ void ask(const CUtensorMap& map, tile::TileLayout layout, int stage,
                                      int box) const {
    if (box == 0) ptx::mbarrier_arrive_expect_tx(barrier(stage), uint32_t(layout.bytes()));
    ptx::cp_async_bulk_tensor_load(
        stages_ +
            uint32_t(stage * Stages::kBytes + box * params_.paged.box_rows * layout.row_bytes()),
        map, {.column = 0, .row = 0, .head = keys_.kv_head, .batch = page_, .inner = row_},
        barrier(stage));
  }

  // Rows past the sequence's end hold anything, and NaN times a P of zero is NaN.
  __device__ __forceinline__ void clear_values(uint32_t v, int from) const {
    constexpr tile::TileLayout kV = Stages::kV;
    constexpr int kChunkColumns = tile::kChunkBytes / kV.element_bytes;
    constexpr int kChunks = kV.columns / kChunkColumns;
    constexpr uint32_t kZeros[4] = {};
#pragma unroll 1
    for (int i = from * kChunks + ptx::lane(); i < Stages::kKeys * kChunks; i += ptx::kLanes) {
      ptx::st_shared_b32x4(v + kV.chunk_offset(i / kChunks, i % kChunks * kChunkColumns), kZeros);
    }
    ptx::fence_proxy_async();  // TMA writes there next
    __syncwarp();
  }

  const ForwardParams& params_;
  const uint32_t stages_, barriers_;
  const typename Stages::Keys warp_keys_;
  DecodeKeys keys_{};
  const int boxes_log2_;          // of a stage
  int page_ = kNoPage, row_ = 0;  // of the lane's box, among those of the last look on
  int asked_ = 0, to_ask_ = 0;    // stages' rows
  int left_ = 0;                  // keys from the current stage's first on
  int stage_ = 0;
  uint32_t phases_ = 0;  // a bit for each stage
};

}  // namespace fa3::hopper
