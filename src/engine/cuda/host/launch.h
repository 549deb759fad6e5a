// SPDX-License-Identifier: Apache-2.0
// Queues a kernel: its shared memory, cluster and place behind the kernel before.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace fa3::cuda {

// Kernels that may already use their shared memory: setting the attribute takes half a microsecond.
// A hash table without chains: a kernel that another one displaced sets its attribute again.
constexpr uintptr_t kKnownKernels = 256;
inline std::atomic<uintptr_t> g_known_kernels[kKnownKernels];

// Allows a kernel `bytes` of shared memory on the current device, and clusters of any size where
// the device has them. `again`: also if that seems done, for a program may have reset the device.
inline cudaError_t allow_smem_and_clusters(const void* function, int bytes, bool clusters,
                                           bool again) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  constexpr uintptr_t kAlignment = 16;  // of functions
  const uintptr_t known = reinterpret_cast<uintptr_t>(function) + uintptr_t(device);
  std::atomic<uintptr_t>& place = g_known_kernels[known / kAlignment % kKnownKernels];
  if (!again && place.load(std::memory_order_relaxed) == known) return cudaSuccess;
  error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && clusters) {  // more than eight CTAs each
    error = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error == cudaSuccess) place.store(known, std::memory_order_relaxed);
  return error;
}

struct LaunchKind {
  bool pdl = false;  // starts under the end of the launch before, and waits for it (ptx/sync.cuh)
  int cluster = 1;   // CTAs
  bool may_cluster = false;  // some launch of the kernel has one, of any size
};

// Queues a kernel with one parameter, if there are CTAs.
inline cudaError_t launch(const void* function, dim3 grid, int threads, int smem_bytes,
                          void* params, LaunchKind kind, cudaStream_t stream) {
  if (grid.x == 0) return cudaSuccess;
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (kind.pdl) {
    cudaLaunchAttribute& chain = attributes[num_attributes++];
    chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chain.val.programmaticStreamSerializationAllowed = 1;
  }
  if (kind.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(kind.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(smem_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  void* arguments[] = {params};
  if (smem_bytes == 0) return cudaLaunchKernelExC(&config, function, arguments);
  cudaError_t error = cudaSuccess;
  for (const bool again : {false, true}) {
    error = allow_smem_and_clusters(function, smem_bytes, kind.may_cluster, again);
    if (error != cudaSuccess) return error;
    error = cudaLaunchKernelExC(&config, function, arguments);
    // These errors mean more shared memory or larger clusters than this context, at least, allows.
    if (error != cudaErrorInvalidValue && error != cudaErrorInvalidClusterSize) break;
    cudaGetLastError();
  }
  return error;
}

}  // namespace fa3::cuda
