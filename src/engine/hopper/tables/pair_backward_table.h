// SPDX-License-Identifier: Apache-2.0
// Every backward kernel to 128 columns whose CTAs are pairs, each for fp16 and bf16: dense ones,
// for full masks. Under a causal mask both key blocks of a pair go through the steps of the first,
// which costs more than half of the additions to dQ. Each has the head dims of a row of
// backward_table.h.
#pragma once

#include "engine/hopper/tables/backward_table.h"

namespace fa3::hopper {

inline constexpr std::array kPairBackwardTable{
    BackwardInstance{
        .config = {.head_dim = 128, .head_dim_v = 128, .stages = 3, .in_pairs = true},
        .why = "two CTAs with neighbouring key blocks sum half of dQ's columns each for both"},
};

}  // namespace fa3::hopper
