// SPDX-License-Identifier: Apache-2.0
// Every backward kernel that is built, each for fp16 and bf16. The first row whose parts are those
// of a call, and that fits its head dims and the device's shared memory, is taken
// (plan/plan_backward.cpp).
#pragma once

#include <array>

#include "engine/ampere/config/backward_config.h"
#include "engine/cuda/catalogue/rows.h"

namespace fa3::ampere {

struct BackwardRow {
  BackwardConfig kernel;
  const char* why;
  bool built = true;
};

constexpr BackwardRow row_of(int columns, int queries, int keys, int stages, int smem_class,
                             const char* why) {
  return {{.head_dim = columns,
           .head_dim_v = columns,
           .block_m = queries,
           .block_n = keys,
           .stages = stages,
           .smem_class = smem_class},
          why};
}

// With P's other form, which softcap and dropout need.
template <size_t N>
constexpr auto with_other_p(std::array<BackwardRow, N> rows) {
  for (BackwardRow& row : rows) row.kernel = row.kernel.with_other_p();
  return rows;
}

// Through the blocks of a block mask, which may have a softcap and dropout, too.
template <size_t N>
constexpr auto masked(std::array<BackwardRow, N> rows) {
  for (BackwardRow& row : rows) row.kernel.block_mask = true;
  return with_other_p(rows);
}

inline constexpr std::array kPlainRows{
    row_of(64, 128, 128, 2, kLargeSmemBytes,
           "dK and dV of 128 keys stay in registers, 128 queries a step"),
    row_of(64, 64, 128, 2, kSmallSmemBytes, "64 queries a step fit 99 KB of shared memory"),
    row_of(128, 64, 128, 2, kLargeSmemBytes, "dK and dV of 128 keys stay in registers"),
    row_of(128, 32, 128, 1, kSmallSmemBytes, "one stage of 32 queries fits 99 KB of shared memory"),
    row_of(192, 64, 64, 2, kLargeSmemBytes, "dK and dV of 64 keys stay in registers"),
    row_of(192, 32, 64, 1, kSmallSmemBytes,
           "64 keys and one stage of 32 queries fit 99 KB of shared memory"),
    row_of(256, 64, 64, 2, kLargestSmemBytes,
           "dK and dV of 64 keys stay in registers, a second stage in 227 KB"),
    row_of(256, 64, 64, 1, kLargeSmemBytes, "dK and dV of 64 keys stay in registers"),
    row_of(256, 16, 64, 1, kSmallSmemBytes,
           "64 keys and one stage of 16 queries fit 99 KB of shared memory"),
};

inline constexpr auto kScoredRows = with_other_p(kPlainRows);

inline constexpr auto kMaskedRows = masked(std::array{
    row_of(64, 64, 128, 2, kSmallSmemBytes, "a block mask: fits 99 KB of shared memory"),
    row_of(128, 64, 128, 2, kLargeSmemBytes,
           "a block mask: dK and dV of 128 keys stay in registers"),
    row_of(128, 32, 128, 1, kSmallSmemBytes,
           "a block mask: one stage of 32 queries fits 99 KB of shared memory"),
    row_of(256, 64, 64, 1, kLargeSmemBytes, "a block mask: dK and dV of 64 keys stay in registers"),
    row_of(256, 16, 64, 1, kSmallSmemBytes,
           "a block mask: one stage of 16 queries fits 99 KB of shared memory"),
});

inline constexpr auto kBackward = cuda::join(kPlainRows, kScoredRows, kMaskedRows);

constexpr BackwardConfig kernel_of(const BackwardRow& row, Element element) {
  BackwardConfig kernel = row.kernel;
  kernel.element = element;
  return kernel;
}

}  // namespace fa3::ampere
