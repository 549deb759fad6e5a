// SPDX-License-Identifier: Apache-2.0
// Keys and values of a quantized cache: TMA brings 8 bits, in pages or not, which other warps
// dequantize; a work tile holds the scales. Next: dequantize_keys.cuh, rescale_queries.cuh.
#pragma once

#include "engine/hopper/forward/producer/dequantize_keys.cuh"
#include "engine/hopper/forward/producer/load_tma_pages.cuh"
#include "engine/hopper/fp8/rescale_queries.cuh"

namespace fa3::hopper {

// Rows that no sequence owns have none.
template <Kernel C>
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

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kQuantized> : PlainKv {
  using Loads = WarpPages<C>;
  using Scales = CacheTileScales<C>;
  using Helper = Dequantizer<C>;

  template <int Count>
  static __device__ __forceinline__ void restore(const WorkTileOf<C>& work,
                                                 float (&output)[Count]) {
#pragma unroll
    for (float& o : output) o *= work.place.value_scale;
  }
};

}  // namespace fa3::hopper
