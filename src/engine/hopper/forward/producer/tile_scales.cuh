// SPDX-License-Identifier: Apache-2.0
// Scales of quantized operands that belong to a whole tile: the producer adds them to its work
// tile. Scales of key blocks come with their keys (load_tma_e4m3.cuh). Next: producer.cuh.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

template <ForwardConfig C>
struct NoTileScales {
  static __device__ __forceinline__ void add(const ForwardParams&, SmemPlan<C>&, WorkTileOf<C>&,
                                             uint32_t) {}
};

// Packed heads share their scales (launch_e4m3.cpp).
template <ForwardConfig C>
struct E4m3TileScales {
  static __device__ __forceinline__ void add(const ForwardParams& params, SmemPlan<C>& smem,
                                             WorkTileOf<C>& work, uint32_t stage) {
    const E4m3Params& e4m3 = params.e4m3;
    const PackGqa pack = params.output.pack;
    const auto& [batch, number, begin, count, used] = work.queries;
    const int sequence = sequence_of<C>(work);
    TileScales& scales = smem.e4m3.tiles[stage];
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const int row = pack.query(work.first_row + w * kRowsPerWarpgroup);
      scales.query[w] =
          params.scale_log2 *
          (row < used ? scale_of(e4m3.query, sequence, pack.head(number, 0), row) : 1.0f);
    }
    scales.value = e4m3.value_scales[e4m3.head_at(sequence, number / params.packs_per_kv_head)];
  }

 private:
  static __device__ __forceinline__ float scale_of(const Descales<const float>& scales, int batch,
                                                   int head, int row) {
    return scales.data ? *scales.at(batch, head, row / FA3_DESCALE_ROWS) : 1.0f;
  }
};

// Scales of a quantized cache. Rows that no sequence owns have none.
template <ForwardConfig C>
struct CacheTileScales {
  static __device__ __forceinline__ void add(const ForwardParams& params, SmemPlan<C>&,
                                             WorkTileOf<C>& work, uint32_t) {
    __syncwarp();  // all lanes have written what each reads now
    const CacheScales& scales = params.cache_scales;
    const int head = work.queries.pack / params.packs_per_kv_head;
    const auto scale_of = [&](const Descales<const float>& of) {
      return of.data && work.keys.count > 0 ? *of.at(work.place.sequence, head, 0) : 1.0f;
    };
    // Neither zero nor infinite: masked scores are -inf, and products may be zero.
    const float key_scale = scale_of(scales.key) * (C.capped() ? 1.0f : params.scale_log2);
    work.place.key_scale = fminf(fmaxf(key_scale, 0x1p-126f), 0x1.fffffep127f);
    work.place.value_scale = scale_of(scales.value);
  }
};

}  // namespace fa3::hopper
