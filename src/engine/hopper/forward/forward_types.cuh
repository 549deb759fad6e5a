// SPDX-License-Identifier: Apache-2.0
// The parts that a forward kernel is made of, by its configuration. Its scheduler is chosen in
// tile_scheduler.cuh. Next: forward_kernel.cuh.
#pragma once

#include "engine/hopper/forward/producer/dequantize_keys.cuh"
#include "engine/hopper/forward/producer/load_cp_async.cuh"
#include "engine/hopper/forward/producer/load_tma.cuh"
#include "engine/hopper/forward/producer/load_tma_e4m3.cuh"
#include "engine/hopper/forward/producer/load_tma_pages.cuh"
#include "engine/hopper/forward/producer/producer.cuh"
#include "engine/hopper/forward/producer/tile_scales.cuh"

namespace fa3::hopper {

// What warps 1 to 3 of the producer's warpgroup do.
template <ForwardConfig C>
struct NoHelper {
  static constexpr bool kExists = false;
};

template <ForwardConfig C, KvLoaderKind = C.kv_loader()>
struct KvLoaderOf;

template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kDense> {
  using Loads = DenseKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper<C>;
};
template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kPages> {
  using Loads = ThreadPages<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper<C>;
};
template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kPagesOrCpAsync> {
  using Loads = WarpPages<C>;
  using Scales = NoTileScales<C>;
  using Helper = CpAsyncLoader<C>;
};
template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kCpAsync> {
  using Loads = CpAsyncKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = CpAsyncLoader<C>;
};
template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kQuantized> {
  using Loads = WarpPages<C>;
  using Scales = CacheTileScales<C>;
  using Helper = Dequantizer<C>;
};
template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kE4m3> {
  using Keys = std::conditional_t<C.general(), ThreadPages<C>, DenseKv<C>>;
  using Loads = E4m3Kv<C, Keys>;
  using Scales = E4m3TileScales<C>;
  using Helper = NoHelper<C>;
};

}  // namespace fa3::hopper
