// SPDX-License-Identifier: Apache-2.0
// The shared memory that a launch asks for.
#pragma once

namespace fa3::cuda {

__device__ __forceinline__ unsigned char* dynamic_smem() {
  extern __shared__ __align__(1024) unsigned char smem_of_launch[];
  return smem_of_launch;
}

}  // namespace fa3::cuda
