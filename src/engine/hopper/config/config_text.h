// SPDX-License-Identifier: Apache-2.0
// The kernels' configs as text and numbers (cuda/jit/config_text.h). Host only.
#pragma once

#include "engine/cuda/jit/config_text.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

constexpr const char* type_name(Sharing) {
  return "Sharing";
}
constexpr const char* type_name(Gradients) {
  return "Gradients";
}
constexpr const char* type_name(Operands) {
  return "Operands";
}
constexpr const char* type_name(Tiles) {
  return "Tiles";
}
constexpr const char* type_name(Scores) {
  return "Scores";
}
constexpr const char* type_name(Sum) {
  return "Sum";
}
constexpr const char* type_name(Weights) {
  return "Weights";
}
constexpr const char* type_name(Ahead) {
  return "Ahead";
}

constexpr auto fields_of(const Shape& shape) {
  const auto& [head_dim, head_dim_v, block_m, block_n, q_stages, kv_stages, loaded_stages,
               ctas_per_sm, overlaps, ping_pong] = shape;
  return std::tie(head_dim, head_dim_v, block_m, block_n, q_stages, kv_stages, loaded_stages,
                  ctas_per_sm, overlaps, ping_pong);
}
static_assert(cuda::has_all_fields<Shape>());

constexpr auto fields_of(const Captured& captured) {
  const auto& [ahead, may_hide] = captured;
  return std::tie(ahead, may_hide);
}
static_assert(cuda::has_all_fields<Captured>());

constexpr auto fields_of(const Kernel& kernel) {
  const auto& [shape, element, operands, tiles, scores, sum, weights, captured, outputs] = kernel;
  return std::tie(shape, element, operands, tiles, scores, sum, weights, captured, outputs);
}
static_assert(cuda::has_all_fields<Kernel>());

constexpr auto fields_of(const BackwardShape& shape) {
  const auto& [head_dim, head_dim_v, block_m, block_n, stages, ds_stages, helpers] = shape;
  return std::tie(head_dim, head_dim_v, block_m, block_n, stages, ds_stages, helpers);
}
static_assert(cuda::has_all_fields<BackwardShape>());

constexpr auto fields_of(const BackwardConfig& config) {
  const auto& [shape, element, tiles, scores, weights, gradients, sharing] = config;
  return std::tie(shape, element, tiles, scores, weights, gradients, sharing);
}
static_assert(cuda::has_all_fields<BackwardConfig>());

}  // namespace fa3::hopper
