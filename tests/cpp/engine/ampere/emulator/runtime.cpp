// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime that launchers call: kernels run at once, CTA by CTA.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "cuda_words.h"

namespace fa3::emulator {
namespace {
std::map<const void*, std::function<void(void*)>> kernels;
unsigned seed = 1;
}  // namespace

void add_kernel(const void* function, std::function<void(void*)> call) {
  kernels[function] = std::move(call);
}
void set_seed(unsigned value) {
  seed = value;
}

}  // namespace fa3::emulator

using namespace fa3::emulator;

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  const auto found = kernels.find(function);
  if (found == kernels.end()) throw std::runtime_error("a launch of an unknown kernel");
  gridDim = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
  for (unsigned block = 0; block < config->gridDim.x; ++block) {
    blockIdx.x = block;
    run_cta(int(config->blockDim.x), int(config->dynamicSmemBytes), ++seed,
            [&] { found->second(arguments[0]); });
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}

}  // extern "C"
