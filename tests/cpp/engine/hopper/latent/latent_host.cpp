// SPDX-License-Identifier: Apache-2.0
// The host's side of a device of three SMs, and the parts of the library that describe() asks.
#include <fa3/mla.h>

#include "api/dropout_mask.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/kernels/kernels.h"
#include "plan/default_engine.h"

void fa3_mla_forward_params_init_sized(fa3_mla_forward_params* params, size_t size) {
  *params = {.struct_size = size, .scale = FA3_SCALE_AUTO, .lse_with_sink = 1};
}

void fa3_mla_backward_params_init_sized(fa3_mla_backward_params* params, size_t size) {
  *params = {.struct_size = size, .scale = FA3_SCALE_AUTO, .lse_with_sink = 1};
}

namespace fa3 {

Status default_engine(int32_t, fa3_engine_id*) {
  return {};
}
Status api::check_probability(float) {
  return {};
}

namespace cuda {

Status check_device(int, Capability) {
  return {};
}
Status count_sms(int, int* count) {
  *count = 3;
  return {};
}
Status finish(cudaError_t error, const char* what) {
  return error == cudaSuccess ? Status{} : invalid(what, ": the launch failed");
}
cudaError_t sum_sink_gradients(const SinkSums& sums, cudaStream_t) {
  for (int head = 0; head < sums.heads; ++head) {
    double sum = 0;
    for (int i = 0; i < sums.q_blocks; ++i) sum += double(sums.sums[head * sums.q_blocks + i]);
    sums.d_sink[head] = float(-sum);
  }
  return cudaSuccess;
}
DeviceScope::DeviceScope(int) {}
DeviceScope::~DeviceScope() = default;

}  // namespace cuda
}  // namespace fa3
