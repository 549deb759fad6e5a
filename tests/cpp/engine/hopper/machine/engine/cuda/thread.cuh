// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

namespace fa3::cuda {

inline unsigned thread_in_block() {
  return threadIdx.x;
}

}  // namespace fa3::cuda
