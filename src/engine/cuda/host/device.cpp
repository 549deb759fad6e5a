// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/host/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.h"

namespace fa3::cuda {
namespace {

constexpr size_t kLittleMemory = size_t{256} << 20;

// What a device is, and stays as long as the process runs: the runtime numbers devices once.
struct Facts {
  int16_t major = 0, minor = 0;  // of the compute capability
  int16_t num_sms = 0;
  int16_t smem_kb = 0;  // that a CTA may ask for

  Capability capability() const { return {major, minor}; }
};

cudaError_t ask(int device, Facts* facts) {
  constexpr cudaDeviceAttr kQuestions[] = {
      cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
      cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin};
  int answers[std::size(kQuestions)] = {};
  for (size_t i = 0; i < std::size(kQuestions); ++i) {
    const cudaError_t error = cudaDeviceGetAttribute(&answers[i], kQuestions[i], device);
    if (error != cudaSuccess) return error;
  }
  *facts = {static_cast<int16_t>(answers[0]), static_cast<int16_t>(answers[1]),
            static_cast<int16_t>(answers[2]), static_cast<int16_t>(answers[3] / 1024)};
  return cudaSuccess;
}

std::string text_of(const Capability& c) {
  return concat(c.major, ".", c.minor, c.or_later ? " or later" : "");
}

// Each device is asked until it answers, then no more: every call wants to know.
cudaError_t look_up(int device, Facts* facts) {
  constexpr int kMostDevices = 64;  // others are asked each time
  static std::atomic<Facts> known[kMostDevices];
  static_assert(std::atomic<Facts>::is_always_lock_free);
  const bool has_place = device >= 0 && device < kMostDevices;
  if (has_place) *facts = known[device].load(std::memory_order_relaxed);
  if (facts->num_sms > 0) return cudaSuccess;
  const cudaError_t error = ask(device, facts);
  if (error == cudaSuccess && has_place) known[device].store(*facts, std::memory_order_relaxed);
  return error;
}

// In plain words where the runtime's own mislead: it calls a missing driver an insufficient one.
// The last error is this thread's, shared with the caller's own CUDA code: leave none behind.
std::string text_of(cudaError_t error) {
  cudaGetLastError();
  if (error == cudaErrorNoDevice) return "no NVIDIA GPU";
  if (error != cudaErrorInsufficientDriver) return cudaGetErrorString(error);
  int version = 0;  // 1000 major + 10 minor; 0 without a driver
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "no NVIDIA driver";
  const bool has_build = version >= 12000 && CUDART_VERSION >= 13000;
  return concat("the NVIDIA driver is for CUDA ", version / 1000, ".", version / 10 % 100,
                ", expected one for ", CUDART_VERSION / 1000, ".0 or later; update it",
                has_build ? ", or build fa3 for drivers of the 12 series (docs/install.md)" : "");
}

Status ended(cudaError_t error, int device) {
  if (error == cudaSuccess) return {};
  return {StatusCode::device_error, concat("cuda:", device, ": ", text_of(error))};
}

// Null: there is none, or no driver yet.
CUcontext current_context() {
  static const auto get =
      reinterpret_cast<decltype(&cuCtxGetCurrent)>(find_driver_function("cuCtxGetCurrent"));
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}

bool make_current(CUcontext context) {
  static const auto set =
      reinterpret_cast<decltype(&cuCtxSetCurrent)>(find_driver_function("cuCtxSetCurrent"));
  return set != nullptr && set(context) == CUDA_SUCCESS;
}

}  // namespace

void* find_driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  constexpr unsigned kSinceVersion = 12000;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, kSinceVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

Availability probe(Capability needed) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return {false, text_of(error)};
  }
  const int device = first_device(needed);
  if (device == kNoDevice) {
    return {false,
            concat("none of ", count, " CUDA devices has compute capability ", text_of(needed))};
  }
  Facts found;
  look_up(device, &found);
  return {true,
          concat("CUDA device ", device, ", compute capability ", text_of(found.capability()))};
}

int first_device(Capability needed) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return kNoDevice;
  }
  for (int device = 0; device < count; ++device) {
    Facts found;
    if (look_up(device, &found) == cudaSuccess && needed.includes(found.capability()))
      return device;
  }
  return kNoDevice;
}

Status check_device(int device, Capability needed) {
  Facts facts;
  if (const cudaError_t error = look_up(device, &facts); error != cudaSuccess) {
    return unsupported("cuda:", device, ": ", text_of(error));
  }
  const Capability found = facts.capability();
  if (needed.includes(found)) return {};
  return unsupported("cuda:", device, " has compute capability ", text_of(found),
                     "; the kernels need ", text_of(needed));
}

Status count_sms(int device, int* count) {
  Facts facts;
  const cudaError_t error = look_up(device, &facts);
  *count = facts.num_sms;
  return error == cudaSuccess ? Status{} : unsupported("cuda:", device, ": ", text_of(error));
}

Status find_capability(int device, Capability* found) {
  Facts facts;
  const cudaError_t error = look_up(device, &facts);
  *found = facts.capability();
  return error == cudaSuccess ? Status{} : unsupported("cuda:", device, ": ", text_of(error));
}

Status count_smem_bytes(int device, int* bytes) {
  Facts facts;
  const cudaError_t error = look_up(device, &facts);
  static const bool small = std::getenv("FA3_SMALL_SMEM") != nullptr;
  *bytes = std::min<int>(facts.smem_kb, small ? 99 : facts.smem_kb) * 1024;
  return error == cudaSuccess ? Status{} : unsupported("cuda:", device, ": ", text_of(error));
}

int flops_per_clock(Capability capability, DType dtype) {
  const int major = capability.major, minor = capability.minor;
  const bool has_float8 = major == 9 || (major == 8 && minor == 9);
  const int doubled = has_float8 && is_float8(dtype) ? 2 : 1;
  if (major == 9) return 4096 * doubled;
  if (major == 8) return (minor == 0 ? 2048 : 1024) * doubled;
  return 0;
}

EngineLimits limits(DType dtype, int device) {
  constexpr double kHertz = 1e3;             // both clocks are in kHz
  constexpr double kBytesPerEdge = 2.0 / 8;  // of a line of the bus: two bits a clock
  int sm_clock = 0, memory_clock = 0, bus_lines = 0;
  Facts facts;
  const bool answers =
      look_up(device, &facts) == cudaSuccess &&
      cudaDeviceGetAttribute(&sm_clock, cudaDevAttrClockRate, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bus_lines, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess;
  if (!answers) {
    cudaGetLastError();  // leave none behind for the caller's own CUDA code
    return {};
  }
  return {.flops = kHertz * sm_clock * facts.num_sms * flops_per_clock(facts.capability(), dtype),
          .bytes = kHertz * memory_clock * bus_lines * kBytesPerEdge};
}

Status finish(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  std::string text = concat(what, ": ", cudaGetErrorString(error));
  // A kernel is loaded at its first use; what the driver says where it does not fit is often no
  // more than "unknown error".
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && free < kLittleMemory) {
    text += concat("; the GPU has ", free >> 20, " MiB of ", total >> 20, " free");
  }
  return {StatusCode::device_error, std::move(text)};
}

Status read_back(void* to, const void* from, int64_t bytes, int device, void* stream) {
  const DeviceScope scope(device);
  cudaError_t error = scope.error();
  const auto queue = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToHost, queue);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(queue);
  return ended(error, device);
}

Status follow(void* stream, void* leader, int device) {
  const DeviceScope scope(device);
  cudaError_t error = scope.error();
  cudaEvent_t event = nullptr;
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventRecord(event, static_cast<cudaStream_t>(leader));
  if (error == cudaSuccess) {
    error = cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, cudaEventWaitDefault);
  }
  if (event != nullptr) cudaEventDestroy(event);  // it goes when it is no longer waited for
  return ended(error, device);
}

Status clear(void* memory, int64_t bytes, int device, void* stream) {
  const DeviceScope scope(device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(memory, 0, size_t(bytes), static_cast<cudaStream_t>(stream));
  }
  return ended(error, device);
}

Status write(void* to, const void* from, int64_t bytes, int device, void* stream) {
  // The driver takes 64 KiB of pageable memory along; of more it may wait for the stream.
  constexpr int64_t kBytesAtOnce = 64 << 10;
  const DeviceScope scope(device);
  cudaError_t error = scope.error();
  const auto queue = static_cast<cudaStream_t>(stream);
  auto capture = cudaStreamCaptureStatusNone;
  if (error == cudaSuccess) error = cudaStreamIsCapturing(queue, &capture);
  if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone) {
    return unsupported(
        "stream: expected one that is not captured, as a graph would read lengths of "
        "the host's memory when it is launched");
  }
  for (int64_t at = 0; at < bytes && error == cudaSuccess; at += kBytesAtOnce) {
    error =
        cudaMemcpyAsync(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                        size_t(std::min(bytes - at, kBytesAtOnce)), cudaMemcpyHostToDevice, queue);
  }
  return ended(error, device);
}

DeviceScope::DeviceScope(int device) : callers_(current_context()) {
  error_ = cudaGetDevice(&previous_);
  if (error_ != cudaSuccess || (callers_ != nullptr && previous_ == device)) return;
  // Also where it is the device already: a thread's first call has no context yet, without which
  // the driver encodes no tensor map.
  error_ = cudaSetDevice(device);
  switched_ = error_ == cudaSuccess && previous_ != device;
}

DeviceScope::~DeviceScope() {
  if (!switched_) return;
  if (callers_ == nullptr || !make_current(callers_)) cudaSetDevice(previous_);
}

}  // namespace fa3::cuda
