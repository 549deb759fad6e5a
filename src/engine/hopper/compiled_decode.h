// SPDX-License-Identifier: Apache-2.0
// The kernels for decoding, each for fp16 and bf16: the tiles of compiled.h that are for few queries,
// without what such a call never needs (ForwardConfig::decodes()): a small call waits for instructions.
// plan_forward.cpp takes them where the call allows.
#pragma once

#include "engine/hopper/compiled.h"

namespace fa3::hopper {

inline constexpr std::array kDecodeTable{
    CompiledForward{.config = {.head_dim = 64,
                               .head_dim_v = 64,
                               .block_m = 64,
                               .block_n = 128,
                               .kv_slots = 6,
                               .ping_pong = false,
                               .blocks = 2,
                               .may_cut = true,
                               .guarded = false,
                               .variant = Variant::kDecode},
                    .max_rows = 64,
                    .why = "decoding"},
    CompiledForward{.config = {.head_dim = 128,
                               .head_dim_v = 128,
                               .block_m = 64,
                               .block_n = 64,
                               .kv_slots = 5,
                               .ping_pong = false,
                               .blocks = 2,
                               .may_cut = true,
                               .guarded = false,
                               .variant = Variant::kDecode},
                    .max_rows = 64,
                    .why = "decoding"},
    CompiledForward{.config = {.head_dim = 256,
                               .head_dim_v = 256,
                               .block_m = 64,
                               .block_n = 64,
                               .kv_slots = 6,
                               .ping_pong = false,
                               .may_cut = true,
                               .guarded = false,
                               .variant = Variant::kDecode},
                    .max_rows = 64,
                    .why = "decoding"},
};

}  // namespace fa3::hopper
