// SPDX-License-Identifier: Apache-2.0
// Whether warps that stream keys (stream/) do a problem, and how its tiles are dealt to them. Next:
// choose_tiles.h, which cuts tiles into runs.
#pragma once

#include "engine/hopper/choose_row.h"

namespace fa3::hopper {

struct StreamChoice {
  int row = kNoRow;  // of kStreamTable; kNoRow: they do not
  Variant variant = Variant::kStream;
};

// The pack and the cut go into the launch, if they do.
StreamChoice choose_stream(const Problem& problem, int multiprocessors, ForwardLaunch* launch);

}  // namespace fa3::hopper
