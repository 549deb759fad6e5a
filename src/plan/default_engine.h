// SPDX-License-Identifier: Apache-2.0
//
// FA3_ENGINE of the environment: the engine of attention calls that ask for none. For programs
// whose calls name no engine, such as those of flash_attn.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include <string>

namespace fa3 {

// The engine of a call on tensors in this memory: the one that the environment names if it takes
// such tensors, else FA3_ENGINE_AUTO.
Status default_engine(int32_t memory, fa3_engine_id* engine);

// What a plan's reason adds where the environment names an engine that takes other tensors, and a
// refusal of `engine` where the environment names that. Else empty.
std::string why_not_default_engine(fa3_engine_id engine, int32_t memory);
std::string why_default_engine(fa3_engine_id engine);

}  // namespace fa3
