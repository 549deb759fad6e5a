// SPDX-License-Identifier: Apache-2.0
// Between stores by threads and their readers in the async proxy: wgmma and the TMA. Executed by
// the thread that stored, before the barrier that tells the reader.
#pragma once

namespace fa3::hopper::ptx {

__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// fence_proxy_async() for global memory: by the thread that stored, and by the one that knows and
// asks TMA for it.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace fa3::hopper::ptx
