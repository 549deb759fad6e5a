// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void fence_proxy_async() {
  machine::fence_proxy_async();
}

inline void fence_proxy_async_global() {
  machine::fence_proxy_async_global();
}

}  // namespace fa3::hopper::ptx
