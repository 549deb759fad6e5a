// SPDX-License-Identifier: Apache-2.0
#include "counting_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace fa3::test {

CountingRuntime g_cuda;
std::function<void(const cudaLaunchConfig_t&, const void*)> g_on_launch;
std::function<void(const MappedBytes&)> g_on_map;

namespace {

dim3 g_pushed_grid;  // of a launch by <<<>>>

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) g_cuda.last_error = error;
  return error;
}

// What the driver accepts of five dimensions without interleaving.
bool is_encodable(uintptr_t data, const cuuint64_t* extents, const cuuint64_t* strides,
                  const cuuint32_t* box) {
  const auto are = [](const auto* values, int count, const auto& good) {
    return std::all_of(values, values + count, good);
  };
  return data % 16 == 0 && are(extents, 5, [](cuuint64_t x) { return x > 0 && x >> 32 == 0; }) &&
         are(strides, 4, [](cuuint64_t x) { return x % 16 == 0 && x >> 40 == 0; }) &&
         are(box, 5, [](cuuint32_t x) { return x > 0 && x <= 256; });
}

CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t, void* data,
                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  ++g_cuda.tensor_maps;
  g_cuda.box_rows = box[1];
  std::memset(map, 0, sizeof *map);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (!is_encodable(begin, extents, strides, box)) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t end = begin + extents[0] * (type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2);
  for (int i = 1; i < 5; ++i) end += (extents[i] - 1) * strides[i - 1];
  const bool is_clipped = strides[0] == strides[1] || strides[1] == strides[2];
  if (g_on_map) g_on_map({begin, end, is_clipped});
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) {
  *context = static_cast<CUcontext>(const_cast<void*>(g_cuda.context));
  return CUDA_SUCCESS;
}

CUresult make_current(CUcontext context) {
  g_cuda.context = context;
  for (int device = 0; device < g_cuda.devices; ++device) {
    if (context == primary_context(device)) g_cuda.device = device;
  }
  if (context == callers_context()) g_cuda.device = 0;
  return CUDA_SUCCESS;
}

cudaError_t launch(dim3 grid) {
  ++g_cuda.launches;
  g_cuda.context_of_launch = g_cuda.context;
  constexpr unsigned kMost = 65535;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > kMost || grid.z > kMost) {
    return noted(cudaErrorInvalidConfiguration);
  }
  return noted(g_cuda.smem_allowed ? g_cuda.launch : cudaErrorInvalidValue);
}

}  // namespace

const void* primary_context(int device) {
  static const char contexts[64] = {};
  return contexts + device;
}

const void* callers_context() {
  static const char context = 0;
  return &context;
}

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
  *value = attribute == cudaDevAttrMultiProcessorCount ? g_cuda.sms
           : attribute == cudaDevAttrComputeCapabilityMajor
               ? (g_cuda.all_are_hopper ? 9 : 9 - device)
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
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
  return fa3::test::launch(config->gridDim);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 grid, dim3, void**, size_t, cudaStream_t) {
  return fa3::test::launch(grid);
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned, cudaLibrary_t) {
  static int kernel;
  kernels[0] = reinterpret_cast<cudaKernel_t>(&kernel);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  ++g_cuda.memsets;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string_view wanted = name;
  *function = wanted == "cuCtxGetCurrent"   ? reinterpret_cast<void*>(&fa3::test::current_context)
              : wanted == "cuCtxSetCurrent" ? reinterpret_cast<void*>(&fa3::test::make_current)
                                            : reinterpret_cast<void*>(&fa3::test::encode);
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
// As the real one: the current context's device, and the device's primary context.
cudaError_t cudaGetDevice(int* device) {
  *device = g_cuda.device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  g_cuda.device = device;
  g_cuda.context = fa3::test::primary_context(device);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = g_cuda.free_bytes;
  *total = size_t{80} << 30;
  return cudaSuccess;
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
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
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
unsigned __cudaPushCallConfiguration(dim3 grid, dim3, size_t, cudaStream_t) {
  fa3::test::g_pushed_grid = grid;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* smem_bytes, void*) {
  *grid = fa3::test::g_pushed_grid;
  *block = dim3(1);
  *smem_bytes = 0;
  return cudaSuccess;
}
}
