// SPDX-License-Identifier: Apache-2.0
// Every backward kernel, each for fp16 and bf16. A row is the main kernel; its preprocess,
// postprocess and other kernels follow from it (instances/backward_entry.cuh). Tiles were chosen by
// measurement: docs/lab/backward.md.
//
// Rows are ordered by their columns; of the same columns the first that serves a call is taken, so
// those that offer less stand first (plan/backward/plan_backward.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/kernels/row.h"

namespace fa3::hopper {

struct BackwardRow {
  BackwardConfig kernel = {};
  bool built = true;  // false: compiled at run time
  const char* why = "";
};

namespace catalogue {

constexpr BackwardRow in(Variant variant, BackwardRow row) {
  row.kernel = row.kernel.with(row.kernel.element, variant);
  return row;
}
constexpr auto in_three_forms(const BackwardRow& row) {
  return std::array{in(Variant::kDense, row), in(Variant::kGeneral, row),
                    in(Variant::kCapped, row)};
}
constexpr auto dense_and_varlen(const BackwardRow& row) {
  return std::array{in(Variant::kDense, row), in(Variant::kGeneral, row)};
}
constexpr auto varlen_and_capped(const BackwardRow& row) {
  return std::array{in(Variant::kGeneral, row), in(Variant::kCapped, row)};
}

// Steps walk the lists of a block mask. A kernel that keeps slopes, as others keep P for a softcap,
// has a score function.
constexpr auto listed(BackwardRow row) {
  row.kernel.weights = Weights::kMaskBits;
  BackwardRow of_slopes = in(Variant::kCapped, row);
  of_slopes.built = false;
  return join(dense_and_varlen(row), std::array{of_slopes});
}

// Gradients in float32.
constexpr auto wide(BackwardRow row) {
  row.kernel.gradients = Gradients::kFloat32;
  return dense_and_varlen(row);
}

constexpr BackwardRow dropped(BackwardRow row) {
  row.kernel.weights = Weights::kDropped;
  return row;
}

inline constexpr const char* kKeysInRegisters =
    "dK and dV of 128 keys stay in registers, dQ has a warpgroup of its own";
inline constexpr const char* kWarpgroupEach =
    "dK and dV of 64 keys stay in registers, a warpgroup each";

inline constexpr BackwardRow kOf64{
    .kernel = {.shape = {.head_dim = 64,
                         .head_dim_v = 64,
                         .block_m = 128,
                         .stages = 3,
                         .helpers = false}},  // 5% ahead without, measured
    .why = "twice as many queries a step, where its products are short"};
inline constexpr BackwardRow kPersistent64{
    .kernel = {.shape = {.head_dim = 64, .head_dim_v = 64, .block_m = 128, .stages = 3},
               .sharing = Sharing::kPersistent},
    .why =
        "persistent CTAs, which load a key block while the one before it ends: it has few "
        "steps"};
inline constexpr BackwardRow kOf128{.kernel = {}, .why = kKeysInRegisters};
inline constexpr BackwardRow kPairs128{
    .kernel = {.shape = {.stages = 3}, .sharing = Sharing::kPairs},
    .why = "two CTAs with neighbouring key blocks sum half of dQ's columns each for both"};
inline constexpr BackwardRow kLongSums192{
    .kernel = {.shape = {.head_dim = 192, .head_dim_v = 128, .block_m = 48, .helpers = false}},
    .why = "dK and dV of 128 keys stay in registers: 48 queries a step leave enough of them"};
inline constexpr BackwardRow kOf256{
    .kernel = {.shape = {.head_dim = 256, .head_dim_v = 256, .block_n = 64, .stages = 2}},
    .why = kWarpgroupEach};
// At 64 columns dropout has no row with a softcap: this one serves.
inline constexpr BackwardRow kDropped128{
    .kernel = {.shape = {.stages = 3, .helpers = false}, .weights = Weights::kDropped},
    .why = kKeysInRegisters};

inline constexpr auto kBackwardRows = join(
    // Rows for some dense calls, then those for all.
    std::array{kPersistent64}, in_three_forms(kOf64), dense_and_varlen(dropped(kOf64)), wide(kOf64),
    listed({.kernel = kPersistent64.kernel, .why = "a step is a block of the mask"}),
    in_three_forms(BackwardRow{.kernel = {.shape = {.head_dim = 96, .head_dim_v = 96}},
                               .why = kKeysInRegisters}),
    std::array{kPairs128}, in_three_forms(kOf128), in_three_forms(kDropped128), wide(kOf128),
    listed({.kernel = kOf128.kernel,
            .why = "dK and dV of 128 keys stay in registers: a step is half a block"}),
    std::array{kLongSums192},
    in_three_forms(BackwardRow{
        .kernel = {.shape = {.head_dim = 192, .head_dim_v = 128, .block_n = 64, .stages = 3}},
        .why = kWarpgroupEach}),
    in_three_forms(BackwardRow{
        .kernel = {.shape = {.head_dim = 192, .head_dim_v = 192, .block_n = 64, .stages = 3}},
        .why = kWarpgroupEach}),
    in_three_forms(kOf256), varlen_and_capped(dropped(kOf256)));

}  // namespace catalogue

inline constexpr auto& kBackward = catalogue::kBackwardRows;

static_assert(std::ranges::all_of(kBackward, [](const BackwardRow& row) {
  return row.kernel.is_consistent();
}));

// Faster than the row for all calls with the same columns, which has its tiles.
constexpr bool is_for_some_dense_calls(const BackwardConfig& c) {
  return (c.in_pairs() || c.persistent() || c.has_long_sums()) && !c.block_mask();
}

constexpr BackwardConfig kernel_of(const BackwardRow& row, Element element) {
  BackwardConfig kernel = row.kernel;
  kernel.element = element;
  return kernel;
}

}  // namespace fa3::hopper
