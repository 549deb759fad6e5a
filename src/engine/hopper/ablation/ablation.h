// SPDX-License-Identifier: Apache-2.0
// The variants of the forward that `fa3 bench --ablation` compares: what each idea of the paper is worth
// (arXiv 2407.08608, table 2). They are linked into the command and the GPU checks, not into the
// library. fp16, head dim 128, as in the paper. Next: plain_kernel.cuh.
#pragma once

#include <array>

#include "engine/hopper/forward_entry.h"

namespace fa3::hopper {

// The library's kernel crosses from tile to tile without a pause, which only a producer of its own
// can do. The plain kernel does one tile after the other, so that it can be had without one.
enum class Loop { kLibrary, kPlain };

struct AblationVariant {
  const char* name;
  const char* what;
  Loop loop;
  ForwardConfig config;
};

constexpr ForwardConfig ablation_config(int block_n, bool ping_pong, bool warp_specialised,
                                        int stages) {
  // One Q buffer and a slot more for K and V: without a producer, slots are filled again late.
  ForwardConfig config{.element = Element::kFp16, .block_n = block_n, .kv_slots = 6};
  config.ping_pong = ping_pong;
  config.warp_specialised = warp_specialised;
  config.stages = stages;
  return config;
}

// 128x128, two consumer warpgroups: the paper's tile. A third stage needs registers for two blocks
// of scores, hence 96 keys, and a two-stage kernel of that tile to compare with.
inline constexpr std::array kAblation{
    AblationVariant{"full", "the library's loop, 128x128", Loop::kLibrary,
                    ablation_config(128, true, true, 2)},
    AblationVariant{"no_ping_pong", "warpgroups do not take turns", Loop::kLibrary,
                    ablation_config(128, false, true, 2)},
    AblationVariant{"no_pipelining", "softmax waits for all products", Loop::kLibrary,
                    ablation_config(128, true, true, 1)},
    AblationVariant{"no_pipelining_no_ping_pong", "neither", Loop::kLibrary,
                    ablation_config(128, false, true, 1)},
    AblationVariant{"plain", "one tile after the other", Loop::kPlain,
                    ablation_config(128, true, true, 2)},
    AblationVariant{"plain_no_warp_specialisation", "a consumer thread issues the copies",
                    Loop::kPlain, ablation_config(128, true, false, 2)},
    AblationVariant{"plain_no_warp_specialisation_no_ping_pong", "and no turns", Loop::kPlain,
                    ablation_config(128, false, false, 2)},
    AblationVariant{"plain_96", "two stages, 128x96", Loop::kPlain,
                    ablation_config(96, true, true, 2)},
    AblationVariant{"plain_96_three_stages", "softmax under two products", Loop::kPlain,
                    ablation_config(96, true, true, 3)},
};

// Defined by the generated source file of the variant (ablation_entry.cuh).
template <int Variant>
ForwardKernel ablation_entry();

ForwardKernel ablation_kernel_at(int variant);

}  // namespace fa3::hopper
