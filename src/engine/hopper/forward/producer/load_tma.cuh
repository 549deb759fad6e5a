// SPDX-License-Identifier: Apache-2.0
// Keys and values that lie row behind row, by TMA: a tile is one copy a slab.
// Next: load_tma_pages.cuh.
#pragma once

#include "engine/hopper/forward/producer/kv_loader.cuh"

namespace fa3::hopper {

// Dense kernels: rows past the tensor's end arrive as zeros.
template <Kernel C>
class DenseKv : public KvStages<C> {
  using Stages = KvStages<C>;

 public:
  using Block = ptx::TileCoordinates;
  using Stages::Stages;

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool) const {
    return {0, keys.begin + number * C.shape.block_n, keys.kv_head, keys.batch};
  }
  __device__ __forceinline__ void load_k(const Block& block, int more_bytes = 0) {
    load(params_.k_map, Stages::kK, block, more_bytes);
  }
  __device__ __forceinline__ void load_v(const Block& block) {
    load(params_.v_map, Stages::kV, block, 0);
  }

 protected:
  using Stages::at_, Stages::kv_, Stages::params_, Stages::wait_for_stage;

 private:
  __device__ __forceinline__ void load(const CUtensorMap& map, tile::TileLayout layout,
                                       const Block& block, int more_bytes) {
    wait_for_stage();
    tile::load_rows(map, layout, layout.rows, at_.loaded(kv_.stage()),
                    at_.loaded_pipeline().full(kv_.stage()), block, more_bytes);
    kv_.advance();
  }
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kDense> : PlainKv {
  using Loads = DenseKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper;
};

}  // namespace fa3::hopper
