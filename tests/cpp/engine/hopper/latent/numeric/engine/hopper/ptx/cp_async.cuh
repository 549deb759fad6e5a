// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers. Bytes that a barrier is told of are there when it is.
#pragma once

#include "engine/cuda/ptx/cp_async.cuh"

namespace fa3::hopper::ptx {

using cuda::cp_async_16;
using cuda::cp_async_commit_group;
using cuda::cp_async_wait_all;
using cuda::cp_async_wait_group;

template <class T>
const T* summed(const T* address) {
  return address;
}

inline void cp_async_mbarrier_arrive(uint32_t barrier) {
  machine::arrive_when_copied(barrier);
}

}  // namespace fa3::hopper::ptx
