// SPDX-License-Identifier: Apache-2.0
// How many SMs a call plans for: those of its device that fa3_options::sm_margin leaves.
#pragma once

#include "core/error.h"
#include "core/macros.h"
#include "core/problem.h"
#include "engine/cuda/host/device.h"

namespace fa3::cuda {

inline Status count_free_sms(const Problem& problem, int* count) {
  FA3_TRY(count_sms(problem.device_index, count));
  if (problem.sm_margin >= *count) {
    return unsupported("sm_margin: expected fewer than the ", *count,
                       " SMs of cuda:", problem.device_index, ", got ", problem.sm_margin);
  }
  *count -= problem.sm_margin;
  return {};
}

}  // namespace fa3::cuda
