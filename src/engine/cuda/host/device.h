// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are, making one current for the length of a scope, and the driver's functions.
// Loads no driver until asked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fa3/status.h>

#include "core/error.h"
#include "core/macros.h"
#include "core/problem.h"
#include "engine/engine.h"

namespace fa3::cuda {

// What an engine's kernels run on: one compute capability, or all from there on.
struct Capability {
  int major = 0;
  int minor = 0;
  bool or_later = false;

  bool includes(const Capability& found) const {
    if (found.major == major && found.minor == minor) return true;
    return or_later && (found.major > major || (found.major == major && found.minor > minor));
  }
};

// Whether some device has this capability, in a sentence.
Availability probe(Capability needed);

constexpr int kNoDevice = -1;

// The first device of this capability, or kNoDevice.
int first_device(Capability needed);

// OK if this device has the capability.
Status check_device(int device, Capability needed);

// A function of the driver, found at run time, so that the library loads without one; null: there
// is none.
void* find_driver_function(const char* name);

Status count_sms(int device, int* count);

Status find_capability(int device, Capability* found);

// The shared memory that a CTA may ask for; with FA3_SMALL_SMEM in the environment no more than
// consumers' cards have, so that their kernels can be tested on others.
Status count_smem_bytes(int device, int* bytes);

// How a call on the device ended, after `what` has queued its work. The last error is this
// thread's, shared with the caller's own CUDA code: none is left behind.
Status finish(cudaError_t error, const char* what);

// Copies device memory to the host behind what the stream has queued, and waits for it.
Status read_back(void* to, const void* from, int64_t bytes, int device, void* stream);

// What the stream gets from now on waits for what the leader has.
Status follow(void* stream, void* leader, int device);

// Queues zeros.
Status clear(void* memory, int64_t bytes, int device, void* stream);
Status write(void* to, const void* from, int64_t bytes, int device, void* stream);

// Makes a device current for a call. A context of the device that the caller has made current (its
// own, or a green one) stays, and the call works in it; else it is the device's primary context.
// Behind the scope the caller's context is current again.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t error() const { return error_; }

 private:
  CUcontext callers_ = nullptr;  // null: there was none
  int previous_ = 0;
  bool switched_ = false;
  cudaError_t error_ = cudaSuccess;
};

// How many SMs a call plans for: those of its device that fa3_options::sm_margin leaves.
inline Status count_free_sms(const Problem& problem, int* count) {
  FA3_TRY(count_sms(problem.device_index, count));
  if (problem.sm_margin >= *count) {
    return unsupported("sm_margin: expected fewer than the ", *count,
                       " SMs of cuda:", problem.device_index, ", got ", problem.sm_margin);
  }
  *count -= problem.sm_margin;
  return {};
}

// Operations a clock of an SM's tensor cores: dense products, added in float32. 0: not known.
int flops_per_clock(Capability capability, DType dtype);

// At the highest clocks of the device's SMs and memory.
EngineLimits limits(DType dtype, int device);

// CUDA events as the clock of an engine's streams.
extern const EngineClock kClock;

}  // namespace fa3::cuda
