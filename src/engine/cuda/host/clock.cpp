// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/host/device.h"

#include "engine/cuda/host/device.h"

namespace fa3::cuda {
namespace {

void* mark(int device, void* stream) {
  const DeviceScope scope(device);
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
  cudaEvent_t event = nullptr;
  const bool takes_marks = cudaStreamIsCapturing(queue, &capture) == cudaSuccess &&
                           capture == cudaStreamCaptureStatusNone;
  if (!takes_marks || cudaEventCreate(&event) != cudaSuccess) return nullptr;
  if (cudaEventRecord(event, queue) == cudaSuccess) return event;
  cudaEventDestroy(event);
  return nullptr;
}

// Asking an event is forbidden while any stream is captured, unless the thread says that it knows.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

EngineClock::Reading between(void* begin, void* end, bool wait, double* seconds) {
  const RelaxedCapture relaxed;
  const auto first = static_cast<cudaEvent_t>(begin), last = static_cast<cudaEvent_t>(end);
  const cudaError_t over = wait ? cudaEventSynchronize(last) : cudaEventQuery(last);
  if (over == cudaErrorNotReady) {
    cudaGetLastError();  // no error: the next launch must not find it
    return EngineClock::Reading::not_yet;
  }
  float milliseconds = 0;
  const cudaError_t found =
      over == cudaSuccess ? cudaEventElapsedTime(&milliseconds, first, last) : over;
  cudaEventDestroy(first);
  cudaEventDestroy(last);
  *seconds = 1e-3 * static_cast<double>(milliseconds);
  return found == cudaSuccess ? EngineClock::Reading::done : EngineClock::Reading::lost;
}

}  // namespace

const EngineClock kClock = {.mark = mark, .between = between};

}  // namespace fa3::cuda
