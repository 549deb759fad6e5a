// SPDX-License-Identifier: Apache-2.0
#include "counting_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace fa3::test {

CountingRuntime g_cuda;
std::function<void(const cudaLaunchConfig_t&, const void*)> g_on_launch;

namespace {

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) g_cuda.last_error = error;
  return error;
}

CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                const cuuint64_t*, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  ++g_cuda.tensor_maps;
  g_cuda.box_rows = box[1];
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

cudaError_t launch() {
  ++g_cuda.launches;
  return noted(g_cuda.smem_allowed ? g_cuda.launch : cudaErrorInvalidValue);
}

}  // namespace
}  // namespace fa3::test

using fa3::test::g_cuda;

extern "C" {

// ---- What is counted, and what a test decides ----

cudaError_t cudaGetDeviceCount(int* count) {
  ++g_cuda.device_counts;
  *count = g_cuda.devices;
  return fa3::test::noted(g_cuda.driver);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ++g_cuda.device_questions;
  if (g_cuda.driver != cudaSuccess) return fa3::test::noted(g_cuda.driver);
  if (device < 0 || device >= g_cuda.devices) return fa3::test::noted(cudaErrorInvalidDevice);
  constexpr int kSms = 132;
  *value = attribute == cudaDevAttrMultiProcessorCount      ? kSms
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9 - device
                                                            : 0;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  ++g_cuda.function_settings;
  g_cuda.smem_allowed = true;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void** arguments) {
  g_cuda.thread_blocks = config->gridDim.x;
  if (fa3::test::g_on_launch) fa3::test::g_on_launch(*config, arguments[0]);
  return fa3::test::launch();
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return fa3::test::launch();
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  ++g_cuda.memsets;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&fa3::test::encode);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t last = g_cuda.last_error;
  g_cuda.last_error = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() {
  return g_cuda.last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInvalidDevice) return "invalid device ordinal";
  if (error == cudaErrorLaunchOutOfResources) return "too many resources requested for launch";
  return "some error";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = g_cuda.driver == cudaSuccess ? CUDART_VERSION : 0;
  return cudaSuccess;
}

// ---- What only has to be there ----

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t*) {
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) {
  return cudaSuccess;
}

// ---- What the compiler's code for kernels calls ----

void** __cudaRegisterFatBinary(void*) {
  return nullptr;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) {
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return cudaSuccess;
}
}
