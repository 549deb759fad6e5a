// SPDX-License-Identifier: Apache-2.0
// The kernels' configs as text and numbers (cuda/jit/config_text.h). Host only.
#pragma once

#include "engine/cuda/jit/config_text.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

constexpr const char* type_name(Variant) {
  return "Variant";
}

constexpr auto fields_of(const ForwardConfig& config) {
  const auto& [element, e4m3, head_dim, head_dim_v, block_m, block_n, q_stages, kv_stages, overlaps,
               ping_pong, ctas_per_sm, quantized_stages, may_split, guarded, dropout, block_mask,
               variant, transposes_v, continued] = config;
  return std::tie(element, e4m3, head_dim, head_dim_v, block_m, block_n, q_stages, kv_stages,
                  overlaps, ping_pong, ctas_per_sm, quantized_stages, may_split, guarded, dropout,
                  block_mask, variant, transposes_v, continued);
}
static_assert(cuda::has_all_fields<ForwardConfig>());

constexpr auto fields_of(const BackwardConfig& config) {
  const auto& [element, head_dim, head_dim_v, block_m, block_n, stages, ds_stages, helpers, variant,
               splits_steps, dropout, block_mask, wide, in_pairs, persistent] = config;
  return std::tie(element, head_dim, head_dim_v, block_m, block_n, stages, ds_stages, helpers,
                  variant, splits_steps, dropout, block_mask, wide, in_pairs, persistent);
}
static_assert(cuda::has_all_fields<BackwardConfig>());

}  // namespace fa3::hopper
