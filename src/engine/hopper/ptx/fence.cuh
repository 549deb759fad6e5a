// SPDX-License-Identifier: Apache-2.0
// Between this thread's stores to shared memory and their readers in the async proxy: wgmma and the
// TMA. Executed by the thread that stored, before the barrier that tells the reader.
#pragma once

namespace fa3::hopper::ptx {

__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fa3::hopper::ptx
