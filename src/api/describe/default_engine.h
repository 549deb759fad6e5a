// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

namespace fa3::api {

// The engine of an attention call that asks for none, on tensors in this memory: the one that the
// environment names in FA3_ENGINE if it takes such tensors, else FA3_ENGINE_AUTO. For programs
// whose calls name no engine, such as those of flash_attn.
Status default_engine(int32_t memory, fa3_engine_id* engine);

}  // namespace fa3::api
