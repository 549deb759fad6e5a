// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "support/memory/device_memory.h"

namespace fa3::test {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("GPU: ") + what + ": " + cudaGetErrorString(error));
}

void check(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  throw std::runtime_error(std::string("GPU: ") + what + ": driver's error " +
                           std::to_string(int(error)));
}

// A function of the driver, found at run time: the tests load on machines without one.
template <class Function>
Function* driver(const char* name, Function*) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  constexpr unsigned kSinceVersion = 12000;
  check(cudaGetDriverEntryPointByVersion(name, &found, kSinceVersion, cudaEnableDefault, &result),
        name);
  return reinterpret_cast<Function*>(found);
}
#define FA3_DRIVER(function) driver(#function, &function)

// Addresses reserved on both sides of the memory, so that nothing else comes to lie there.
constexpr size_t kReserved = size_t{64} << 20;

CUmemAllocationProp on_device() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, DeviceMemory::kDevice};
  return kind;
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) {
  check(cudaSetDevice(kDevice), "cannot be used");
  check(cudaFree(nullptr), "cannot be used");
  const CUmemAllocationProp kind = on_device();
  size_t unit = 0;
  check(
      FA3_DRIVER(cuMemGetAllocationGranularity)(&unit, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "no size to allocate in");
  mapped_ = (bytes / unit + 1) * unit;
  CUdeviceptr reserved = 0;
  check(FA3_DRIVER(cuMemAddressReserve)(&reserved, mapped_ + 2 * kReserved, 0, 0, 0),
        "no addresses left");
  const CUdeviceptr begin = reserved + kReserved;
  CUmemGenericAllocationHandle memory;
  check(FA3_DRIVER(cuMemCreate)(&memory, mapped_, &kind, 0), "no memory left");
  check(FA3_DRIVER(cuMemMap)(begin, mapped_, 0, memory, 0), "mapping memory failed");
  check(FA3_DRIVER(cuMemRelease)(memory), "mapping memory failed");
  const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check(FA3_DRIVER(cuMemSetAccess)(begin, mapped_, &access, 1), "mapping memory failed");
  data_ = reinterpret_cast<std::byte*>(begin);
  check(cudaMemset(data_, 0xff, mapped_), "filling memory failed");
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  const auto begin = reinterpret_cast<CUdeviceptr>(data_);
  cudaDeviceSynchronize();  // unlike cudaFree(), cuMemUnmap() waits for nobody
  FA3_DRIVER(cuMemUnmap)(begin, mapped_);
  FA3_DRIVER(cuMemAddressFree)(begin - kReserved, mapped_ + 2 * kReserved);
}

void DeviceMemory::write(size_t at, const void* host, size_t bytes) {
  check(cudaMemcpy(data_ + at, host, bytes, cudaMemcpyHostToDevice), "copying to it failed");
}

void DeviceMemory::read(size_t at, void* host, size_t bytes) const {
  check(cudaMemcpy(host, data_ + at, bytes, cudaMemcpyDeviceToHost),
        "the call, or copying its results, failed");
}

}  // namespace fa3::test
