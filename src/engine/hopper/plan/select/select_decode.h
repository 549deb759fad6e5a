// SPDX-License-Identifier: Apache-2.0
// Whether a decode kernel does a call, and how its tiles come to CTAs. Next: choose_split.h, which
// splits the tiles of several sequences.
#pragma once

#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {

// No row: no decode kernel does the call.
Choice select_decode(const Request& r);

}  // namespace fa3::hopper
