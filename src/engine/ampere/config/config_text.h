// SPDX-License-Identifier: Apache-2.0
// The kernels' configs as text and numbers (cuda/jit/config_text.h). Host only.
#pragma once

#include "engine/ampere/config/backward_config.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/jit/config_text.h"

namespace fa3::ampere {

constexpr auto fields_of(const ForwardConfig& config) {
  const auto& [element, head_dim, head_dim_v, block_m, block_n, stages, ctas_per_sm, q_columns,
               dropout, quantized, block_mask, outputs] = config;
  return std::tie(element, head_dim, head_dim_v, block_m, block_n, stages, ctas_per_sm, q_columns,
                  dropout, quantized, block_mask, outputs);
}
static_assert(cuda::has_all_fields<ForwardConfig>());

constexpr auto fields_of(const BackwardConfig& config) {
  const auto& [element, head_dim, head_dim_v, block_m, block_n, stages, smem_class, scored,
               block_mask, keeps_slopes] = config;
  return std::tie(element, head_dim, head_dim_v, block_m, block_n, stages, smem_class, scored,
                  block_mask, keeps_slopes);
}
static_assert(cuda::has_all_fields<BackwardConfig>());

}  // namespace fa3::ampere
