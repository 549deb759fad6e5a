// SPDX-License-Identifier: Apache-2.0
// The producer (paper, Algorithm 1): one thread that announces tiles and has TMA load
// them. For every key block it loads K, then V of the block before it, because a consumer
// multiplies Q K^T of one block together with P V of the previous one, across tiles too. Next:
// mainloop.cuh.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward/tile_scheduler.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// Where the keys of a tile lie: in registers, since its work tile is in shared memory.
struct TileKeys {
  int begin;  // of block 0, in the tensors
  int count;  // from there on, of the sequence
  int kv_head;
  int batch;  // or entry of the page table

  // Of e4m3:
  int sequence;
  int first;  // block 0's first key, counted from the sequence's
};

template <ForwardConfig C>
__device__ __forceinline__ TileKeys keys_of(const ForwardParams& params,
                                            const WorkTileOf<C>& item) {
  return {item.keys.begin + item.first_key,
          item.keys.count - item.first_key,
          item.queries.pack / params.packs_per_kv_head,
          item.keys.batch,
          sequence_of<C>(item),
          item.first_key};
}

// Q, K and V of the tiles, into their pipelines.
template <ForwardConfig C>
class TmaLoader {
 public:
  __device__ __forceinline__ TmaLoader(const ForwardParams& params, SmemAddresses<C> at)
      : params_(params), at_(at) {}

  // Of the lanes that run this, the one that speaks for all.
  static __device__ __forceinline__ bool leads() { return !C.loads_by_warp() || ptx::lane() == 0; }

  // In parts, each as soon as its warpgroup has released the one before.
  __device__ __forceinline__ void load_q(const WorkTileOf<C>& item) {
    const PackGqa pack = params_.output.pack;
#pragma unroll 1  // the producer has few registers
    for (int w = 0; w < C.consumers(); ++w) {
      const Pipeline<C.q_stages> pipeline = at_.q_pipeline(w);
      const int part_row = w * kRowsPerWarpgroup;
      pipeline.wait_empty(q_);
      if (!leads()) continue;
      load_q_part(pipeline, part_row,
                  place_of(item.queries, pack.query(item.first_row + part_row)));
    }
    q_.advance();
  }

  // K of a block, and V of the block that the last call was about. Blocks of a tile come one after
  // the other, the last one first.
  __device__ __forceinline__ void load_kv(const TileKeys& keys, int block, bool starts_tile) {
    const ptx::TileCoordinates next = place_of(keys, block);
    if constexpr (C.e4m3) {
      const int key = keys.first + block * C.block_n;
      load_scaled_keys(next, keys.sequence, key);
      load_delayed_v();
      delayed_v_ = {.column = key, .row = 0, .head = keys.kv_head, .batch = keys.sequence};
    } else if constexpr (C.loads_by_warp()) {
      if (starts_tile) box_ahead_ = first_box_of(next);
      const PageBox box = box_ahead_;
      load_block({params_.k_map, params_.k_outside, params_.k.columns}, kK, next, 0, box);
      if (block > 0) box_ahead_ = first_box_of(place_of(keys, block - 1));
      load_delayed_v();
      delayed_v_ = next;
      delayed_box_ = box;
    } else {
      load_block({params_.k_map, params_.k_outside, params_.k.columns}, kK, next);
      load_delayed_v();
      delayed_v_ = next;
    }
    has_delayed_v_ = true;
  }

  __device__ __forceinline__ void load_delayed_v() {
    if (has_delayed_v_) {
      if constexpr (C.e4m3) {
        load_transposed(delayed_v_);
      } else {
        load_block({params_.v_map, params_.v_outside, params_.output.o.columns}, kV, delayed_v_, 0,
                   delayed_box_);
      }
    }
    has_delayed_v_ = false;
  }

 private:
  // Of a block in pages, what a lane asks for at once.
  struct PageBox {
    int page;
    int row;  // in the page
  };

  static constexpr tile::TileLayout kQ = C.q_tile(), kK = C.loaded_k_tile(), kV = C.loaded_v_tile();

  __device__ __forceinline__ void load_q_part(Pipeline<C.q_stages> pipeline, int part_row,
                                              const ptx::TileCoordinates& place) {
    const uint32_t smem = at_.q(q_.stage()) + part_row * kQ.row_bytes(),
                   full = pipeline.full(q_.stage());
    if (C.general() && params_.q_is_clipped) {
      const bool some_inside = place.row < kRowsPerWarpgroup >> params_.output.pack.log2;
      tile::load_clipped_rows({params_.q_map, params_.q_outside, params_.q.columns}, kQ,
                              kRowsPerWarpgroup, some_inside, smem, full, place);
    } else {
      tile::load_rows(params_.q_map, kQ, kRowsPerWarpgroup, smem, full, place);
    }
  }

  // Where a warpgroup's queries lie, from the `first` of their sequence on.
  __device__ __forceinline__ ptx::TileCoordinates place_of(const cuda::QueryRows& queries,
                                                           int first) const {
    if (C.general() && params_.q_is_clipped) {
      const int box = kRowsPerWarpgroup >> params_.output.pack.log2;
      const int left = queries.used - first;
      const int rows = left < 0 ? 0 : left < box ? left : box;
      return {0, box - rows, queries.begin + first + rows, queries.pack};
    }
    return {0, queries.begin + first, queries.pack, queries.batch};
  }

  // Where a key block lies. Of a general kernel, keys past the sequence's end are kept out: NaN in
  // a neighbour's V would reach this sequence's rows, although its weight is zero.
  __device__ __forceinline__ ptx::TileCoordinates place_of(const TileKeys& keys, int block) const {
    const int key = block * C.block_n;
    if constexpr (C.clips_keys()) {
      const int left = keys.count - key;
      const int rows = left < 0 ? 0 : left < C.block_n ? left : C.block_n;
      return {0, keys.begin + key + rows, keys.kv_head, keys.batch, C.block_n - rows};
    } else {
      return {0, keys.begin + key, keys.kv_head, keys.batch};
    }
  }

  // No lane is a lap behind: a barrier tells one from the next alone.
  __device__ __forceinline__ void wait_for_stage() const {
    at_.loaded_pipeline().wait_empty(kv_);
    if constexpr (C.loads_by_warp()) __syncwarp();
  }

  // Threads copy this tile (load_cp_async.cuh). Its barrier waits for the producer's word all the
  // same: so it draws and announces tiles no earlier than it would load them.
  __device__ __forceinline__ void leave_to_cp_async() {
    wait_for_stage();
    if (leads()) ptx::mbarrier_arrive(at_.kv_pipeline().full(kv_.stage()));
    kv_.advance();
  }

  __device__ __forceinline__ void load_block(const tile::ClippedMap& map, tile::TileLayout layout,
                                             const ptx::TileCoordinates& block, int more_bytes = 0,
                                             const PageBox& first_box = {}) {
    if constexpr (C.may_use_cp_async()) {
      if (uses_cp_async<C>(params_)) {
        leave_to_cp_async();
        return;
      }
    }
    if constexpr (C.clips_keys()) {
      if (params_.paged.page_size > 0) {
        if constexpr (C.loads_by_warp()) {
          load_boxes(map, layout, block, first_box);
        } else {
          load_pages(map, layout, block, more_bytes);
        }
        kv_.advance();
        return;
      }
    }
    wait_for_stage();
    const uint32_t smem = at_.loaded(kv_.stage()), full = at_.loaded_pipeline().full(kv_.stage());
    if constexpr (C.clips_keys()) {
      if (leads()) {
        tile::load_clipped_rows(map, layout, layout.rows, block.inner < layout.rows, smem, full,
                                block, more_bytes);
      }
    } else {
      tile::load_rows(map.inside, layout, layout.rows, smem, full, block, more_bytes);
    }
    kv_.advance();
  }

  // The same from pages, whose table's entry is the block's batch: in boxes, each from one page.
  // Those past the sequence's end look at no page; they are zeros, as those of pages that do not
  // exist.
  __device__ __forceinline__ void load_pages(const tile::ClippedMap& map, tile::TileLayout layout,
                                             const ptx::TileCoordinates& block,
                                             int more_bytes) const {
    const PagedKeys& paged = params_.paged;
    const uint32_t smem = at_.loaded(kv_.stage()), full = at_.loaded_pipeline().full(kv_.stage());
    const int used_rows = layout.rows - block.inner;
    const unsigned first_row = unsigned(block.row - used_rows),
                   page_size = unsigned(paged.page_size);
    const int32_t* const table = paged.table + block.batch * paged.table_stride;
    const auto page_of = [&](int row) {
      return row < used_rows ? table[(first_row + unsigned(row)) / page_size] : 0;
    };
    int next = page_of(0);  // on its way while the stage is waited for
    wait_for_stage();
    ptx::mbarrier_arrive_expect_tx(full, layout.bytes() + more_bytes);
#pragma unroll 1
    for (int row = 0; row < layout.rows; row += paged.box_rows) {
      const int number = next;
      const int left = used_rows - row;
      const int rows = left < 0 ? 0 : left < paged.box_rows ? left : paged.box_rows;
      next = page_of(row + paged.box_rows);  // on its way while the box is asked for
      const bool exists = unsigned(number) < unsigned(paged.num_pages);
      tile::issue_clipped_rows(map, layout, rows > 0 && exists, smem + row * layout.row_bytes(),
                               full,
                               {0, int((first_row + unsigned(row)) % page_size) + rows, block.head,
                                number, paged.box_rows - rows});
    }
  }

  // The same by a warp, a box a lane at a time. The first ones, most often the only ones, have been
  // looked up a block ahead, and for K and V at once: else the products would wait for the table.
  __device__ __forceinline__ void load_boxes(const tile::ClippedMap& map, tile::TileLayout layout,
                                             const ptx::TileCoordinates& block,
                                             const PageBox& first) const {
    const PagedKeys& paged = params_.paged;
    const uint32_t smem = at_.loaded(kv_.stage()), full = at_.loaded_pipeline().full(kv_.stage());
    wait_for_stage();
    if (leads()) ptx::mbarrier_arrive_expect_tx(full, layout.bytes());
    const int used_rows = layout.rows - block.inner, step = ptx::kLanes * paged.box_rows;
    PageBox next = first;
#pragma unroll 1
    for (int row = ptx::lane() * paged.box_rows; row < layout.rows; row += step) {
      const PageBox box = next;
      next = box_of(block, row + step);  // on its way while this one is asked for
      const int left = used_rows - row;
      const int rows = left < 0 ? 0 : left < paged.box_rows ? left : paged.box_rows;
      const bool exists = unsigned(box.page) < unsigned(paged.num_pages);
      tile::issue_clipped_rows(map, layout, rows > 0 && exists, smem + row * layout.row_bytes(),
                               full,
                               {0, box.row + rows, block.head, box.page, paged.box_rows - rows});
    }
  }

  __device__ __forceinline__ PageBox first_box_of(const ptx::TileCoordinates& block) const {
    if constexpr (!C.clips_keys()) return {};
    if constexpr (C.may_use_cp_async()) {
      if (uses_cp_async<C>(params_)) return {};
    }
    return params_.paged.page_size > 0 ? box_of(block, ptx::lane() * params_.paged.box_rows)
                                       : PageBox{};
  }

  __device__ __forceinline__ PageBox box_of(const ptx::TileCoordinates& block, int row) const {
    const PagedKeys& paged = params_.paged;
    const int used_rows = C.block_n - block.inner;
    if (row >= used_rows) return {};
    const unsigned key = unsigned(block.row - used_rows + row);
    const unsigned entry = key / unsigned(paged.page_size);
    return {paged.table[block.batch * paged.table_stride + entry],  // nobody waits for it yet
            int(key - entry * unsigned(paged.page_size))};
  }

  // The scales travel with the keys.
  __device__ __forceinline__ void load_scaled_keys(const ptx::TileCoordinates& block, int sequence,
                                                   int key) {
    constexpr int kScaleBytes = C.scale_groups() * int(sizeof(KeyScales));
    const uint32_t stage = kv_.stage();
    load_block({params_.k_map, params_.k_outside, params_.k.columns}, kK, block, kScaleBytes);
    ptx::cp_async_bulk_load(at_.key_scales(stage), params_.e4m3.keys_at(sequence, block.head, key),
                            kScaleBytes, at_.loaded_pipeline().full(stage));
  }

  // From where prepare_e4m3.cu has put V: whole blocks, zeros behind the last key.
  __device__ __forceinline__ void load_transposed(const ptx::TileCoordinates& block) {
    wait_for_stage();
    tile::load_rows(params_.v_map, kV, kV.rows, at_.loaded(kv_.stage()),
                    at_.loaded_pipeline().full(kv_.stage()), block);
    kv_.advance();
  }

  const ForwardParams& params_;
  const SmemAddresses<C> at_;
  PipelineState<C.q_stages> q_;
  PipelineState<C.loaded_stages()> kv_;
  ptx::TileCoordinates delayed_v_{};
  PageBox box_ahead_{}, delayed_box_{};  // this lane's first box of a block in pages
  bool has_delayed_v_ = false;
};

template <ForwardConfig C>
class Producer {
 public:
  __device__ __forceinline__ Producer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at)
      : params_(params),
        smem_(smem),
        at_(at),
        tiles_(params, sequences_of(smem), combine_tiles_of(smem)),
        loader_(params, at) {}

  __device__ __forceinline__ void run() {
    for (; !tiles_.done(); tiles_.advance()) load_tile();
    if constexpr (C.can_split())
      loader_.load_delayed_v();  // splits are short: their V should not wait
    if constexpr (C.always_splits()) announce_combines();
    next_record().num_blocks = 0;
    announce();
    loader_.load_delayed_v();
  }

 private:
  static __device__ __forceinline__ SequenceSmem* sequences_of(SmemPlan<C>& smem) {
    if constexpr (C.can_split()) {
      return &smem.split.sequences;
    } else {
      return nullptr;
    }
  }

  static __device__ __forceinline__ CombineTiles* combine_tiles_of(SmemPlan<C>& smem) {
    if constexpr (C.always_splits()) {
      return &smem.split.tiles;
    } else {
      return nullptr;
    }
  }

  __device__ __forceinline__ void load_tile() {
    WorkTileOf<C>& item = next_record();
    bool is_split = false;
    if constexpr (C.can_split()) {
      is_split = tiles_.is_split();
      if (is_split && !tiles_.next_split(item)) return;
      if constexpr (C.always_splits()) show(item);  // warps that copy wait for it
    }
    if (!is_split) tiles_.describe(item);
    // All lanes have written the work tile, and read it now.
    if constexpr (C.loads_by_warp() && !C.always_splits()) __syncwarp();
    if (!is_split) show(item);
    const TileKeys keys = keys_of<C>(params_, item);
    const int last = item.num_blocks - 1;
    const int draw_at = last > 0 ? 1 : 0;
    // The only Q is spent once the tile before has its last scores: after this tile's first K. A
    // split is described while that K is on its way.
    constexpr bool q_first = C.q_stages > 1;  // of tiles that cannot be split
    for (int block = last; block >= 0; --block) {
      if (block == draw_at) tiles_.draw_next();
      if (block == last && q_first) loader_.load_q(item);
      loader_.load_kv(keys, block, block == last);
      if (block == last && !q_first) {
        if constexpr (C.can_split() && !C.always_splits()) {
          if (is_split) {
            tiles_.describe_split(item);
            show(item);
          }
        }
        loader_.load_q(item);
      }
    }
  }

  // To those who combine, with the last work tile.
  __device__ __forceinline__ void announce_combines() {
    smem_.split.tiles.count = tiles_.num_combines();
    __syncwarp();
    const int lane = ptx::lane();
    if (lane < tiles_.num_combines()) {
      const SplitCounter count(params_.counts, count_of(smem_.split.tiles.tiles[lane], {}));
      count.prepare(count.look());
    }
  }

  // To the consumers.
  __device__ __forceinline__ void show(WorkTileOf<C>& item) {
    if constexpr (C.e4m3) describe_scales(item);
    if constexpr (C.dequantizes()) {
      __syncwarp();  // all lanes have written what each reads now
      describe_cache_scales(item);
    }
    announce();
  }

  // Rows that no sequence owns have none.
  __device__ __forceinline__ void describe_cache_scales(WorkTileOf<C>& item) const {
    const CacheScales& scales = params_.cache_scales;
    const int head = item.queries.pack / params_.packs_per_kv_head;
    const auto scale_of = [&](const Descales<const float>& of) {
      return of.data && item.keys.count > 0 ? *of.at(item.place.sequence, head, 0) : 1.0f;
    };
    // Not zero: masked scores are -inf.
    const float key_scale = scale_of(scales.key) * (C.capped() ? 1.0f : params_.scale_log2);
    item.place.key_scale = fmaxf(key_scale, 0x1p-126f);
    item.place.value_scale = scale_of(scales.value);
  }

  // Packed heads share their scales (launch_e4m3.cpp).
  __device__ __forceinline__ void describe_scales(const WorkTileOf<C>& item) {
    const E4m3Params& e4m3 = params_.e4m3;
    const PackGqa pack = params_.output.pack;
    const auto& [batch, number, begin, count, used] = item.queries;
    const int sequence = sequence_of<C>(item);
    TileScales& scales = smem_.e4m3.tiles[work_tile_state_.stage()];
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const int row = pack.query(item.first_row + w * kRowsPerWarpgroup);
      scales.query[w] =
          params_.scale_log2 *
          (row < used ? scale_of(e4m3.query, sequence, pack.head(number, 0), row) : 1.0f);
    }
    scales.value = e4m3.value_scales[e4m3.head_at(sequence, number / params_.packs_per_kv_head)];
  }

  static __device__ __forceinline__ float scale_of(const Descales<const float>& scales, int batch,
                                                   int head, int row) {
    return scales.data ? *scales.at(batch, head, row / FA3_DESCALE_ROWS) : 1.0f;
  }

  // Where the next tile is described; announce() shows it to the consumers.
  __device__ __forceinline__ WorkTileOf<C>& next_record() {
    at_.work_tile_pipeline().wait_empty(work_tile_state_);
    return smem_.work_tiles[work_tile_state_.stage()];
  }

  __device__ __forceinline__ void announce() {
    if constexpr (C.loads_by_warp()) __syncwarp();
    if (ptx::kEveryLaneArrives || TmaLoader<C>::leads()) {
      ptx::mbarrier_arrive(at_.work_tile_pipeline().full(work_tile_state_.stage()));
    }
    work_tile_state_.advance();
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  WorkTileState work_tile_state_;
  TileScheduler<C> tiles_;
  TmaLoader<C> loader_;
};

}  // namespace fa3::hopper
