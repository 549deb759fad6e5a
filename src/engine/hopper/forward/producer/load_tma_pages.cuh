// SPDX-License-Identifier: Apache-2.0
// Keys and values of sequences that lie beside each other or in pages, by TMA. Pages come in boxes
// of rows, each box from one page. Boxes past the sequence's end look at no page; they are zeros,
// as those of pages that do not exist. The launch says whether there are pages, and whether threads
// copy instead: the choice is made here alone. Next: load_tma_e4m3.cuh.
#pragma once

#include "engine/hopper/forward/producer/load_tma.cuh"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

// Keys past a sequence's end are kept out: NaN in a neighbour's V would reach this sequence's rows,
// although its P is zero. `inner` of a place counts the rows that are.
template <Kernel C>
class ClippedKv : public KvStages<C> {
  using Stages = KvStages<C>;

 public:
  using Stages::Stages;

 protected:
  using Stages::at_, Stages::kv_, Stages::params_, Stages::wait_for_stage;

  static __device__ __forceinline__ ptx::TileCoordinates place_of(const TileKeys& keys,
                                                                  int number) {
    const int key = number * C.shape.block_n;
    const int left = keys.count - key;
    const int rows = left < 0 ? 0 : left < C.shape.block_n ? left : C.shape.block_n;
    return {0, keys.begin + key + rows, keys.kv_head, keys.batch, C.shape.block_n - rows};
  }

  __device__ __forceinline__ void load_clipped(const tile::ClippedMap& map, tile::TileLayout layout,
                                               const ptx::TileCoordinates& block,
                                               int more_bytes = 0) {
    wait_for_stage();
    const uint32_t smem = at_.loaded(kv_.stage()), full = at_.loaded_pipeline().full(kv_.stage());
    if (Stages::Issuer::leads()) {
      tile::load_clipped_rows(map, layout, layout.rows, block.inner < layout.rows, smem, full,
                              block, more_bytes);
    }
    kv_.advance();
  }
};

// By one thread.
template <Kernel C>
class ThreadPages : public ClippedKv<C> {
  using Stages = ClippedKv<C>;
  using Stages::k_map, Stages::load_clipped, Stages::place_of, Stages::v_map;

 protected:
  using Stages::at_, Stages::kv_, Stages::params_, Stages::wait_for_stage;

 public:
  using Block = ptx::TileCoordinates;
  using Stages::Stages;

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool) const {
    return place_of(keys, number);
  }

  __device__ __forceinline__ void load_k(const Block& block, int more_bytes = 0) {
    load(k_map(), Stages::kK, block, more_bytes);
  }
  __device__ __forceinline__ void load_v(const Block& block) {
    load(v_map(), Stages::kV, block, 0);
  }

 private:
  __device__ __forceinline__ void load(const tile::ClippedMap& map, tile::TileLayout layout,
                                       const Block& block, int more_bytes) {
    if (params_.paged.page_size > 0) {
      load_boxes(map, layout, block, more_bytes);
    } else {
      load_clipped(map, layout, block, more_bytes);
    }
  }

  __device__ __forceinline__ void load_boxes(const tile::ClippedMap& map, tile::TileLayout layout,
                                             const Block& block, int more_bytes) {
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
    kv_.advance();
  }
};

// By a warp, a box a lane at a time. The first boxes, most often the only ones, are looked up a
// block ahead, and for K and V at once: else the products would wait for the table.
template <Kernel C>
class WarpPages : public ClippedKv<C> {
  using Stages = ClippedKv<C>;
  using Stages::at_, Stages::k_map, Stages::kv_, Stages::load_clipped, Stages::params_,
      Stages::place_of, Stages::v_map, Stages::wait_for_stage;

  // What a lane asks for at once.
  struct PageBox {
    int page;
    int row;  // in the page
  };

 public:
  struct Block {
    ptx::TileCoordinates place;
    PageBox first;  // this lane's
  };

  using Stages::Stages;

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool starts_tile) {
    const ptx::TileCoordinates place = place_of(keys, number);
    if (starts_tile) ahead_ = first_box_of(place);
    return {place, ahead_};
  }
  __device__ __forceinline__ void look_ahead(const TileKeys& keys, int number) {
    ahead_ = first_box_of(place_of(keys, number));
  }

  __device__ __forceinline__ void load_k(const Block& block) { load(k_map(), Stages::kK, block); }
  __device__ __forceinline__ void load_v(const Block& block) { load(v_map(), Stages::kV, block); }

 private:
  __device__ __forceinline__ void load(const tile::ClippedMap& map, tile::TileLayout layout,
                                       const Block& block) {
    if (uses_cp_async<C>(params_)) {
      this->leave_to_cp_async();
      return;
    }
    if (params_.paged.page_size > 0) {
      load_boxes(map, layout, block.place, block.first);
    } else {
      load_clipped(map, layout, block.place);
    }
  }

  __device__ __forceinline__ void load_boxes(const tile::ClippedMap& map, tile::TileLayout layout,
                                             const ptx::TileCoordinates& block,
                                             const PageBox& first) {
    const PagedKeys& paged = params_.paged;
    const uint32_t smem = at_.loaded(kv_.stage()), full = at_.loaded_pipeline().full(kv_.stage());
    wait_for_stage();
    if (Stages::Issuer::leads()) ptx::mbarrier_arrive_expect_tx(full, layout.bytes());
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
    kv_.advance();
  }

  __device__ __forceinline__ PageBox first_box_of(const ptx::TileCoordinates& block) const {
    if (uses_cp_async<C>(params_)) return {};
    return params_.paged.page_size > 0 ? box_of(block, ptx::lane() * params_.paged.box_rows)
                                       : PageBox{};
  }

  __device__ __forceinline__ PageBox box_of(const ptx::TileCoordinates& block, int row) const {
    const PagedKeys& paged = params_.paged;
    const int used_rows = C.shape.block_n - block.inner;
    if (row >= used_rows) return {};
    const unsigned key = unsigned(block.row - used_rows + row);
    const unsigned entry = key / unsigned(paged.page_size);
    return {paged.table[block.batch * paged.table_stride + entry],  // nobody waits for it yet
            int(key - entry * unsigned(paged.page_size))};
  }

  PageBox ahead_{};
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kPages> : PlainKv {
  using Loads = ThreadPages<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper;
};

}  // namespace fa3::hopper
