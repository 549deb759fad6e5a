// SPDX-License-Identifier: Apache-2.0
// CUDA events as the clock of an engine's streams.
#pragma once

#include "engine/engine.h"

namespace fa3::cuda {

extern const EngineClock kClock;

}  // namespace fa3::cuda
