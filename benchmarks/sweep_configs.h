// SPDX-License-Identifier: Apache-2.0
// The configurations hopper_sweep times.
#pragma once

#include <array>

#include "engine/hopper/forward_config.h"

namespace fa3::testing {

using hopper::Element;
using hopper::ForwardConfig;

inline constexpr std::array kSweepConfigs{
    ForwardConfig{.head_dim = 64, .head_dim_v = 64, .block_m = 192, .block_n = 128, .kv_slots = 8},
    ForwardConfig{.head_dim = 64,
                  .head_dim_v = 64,
                  .block_m = 192,
                  .block_n = 128,
                  .q_slots = 2,
                  .kv_slots = 8},
    ForwardConfig{.block_n = 128, .q_slots = 2, .kv_slots = 5},
    ForwardConfig{.block_n = 128, .kv_slots = 6},
    ForwardConfig{.block_m = 192, .block_n = 80, .kv_slots = 8, .ping_pong = false},
    ForwardConfig{.block_m = 192, .block_n = 64, .kv_slots = 10, .ping_pong = false},
    ForwardConfig{.head_dim = 256, .head_dim_v = 256, .block_m = 128, .block_n = 64, .kv_slots = 5},
};

}  // namespace fa3::testing
