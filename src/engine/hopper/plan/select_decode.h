// SPDX-License-Identifier: Apache-2.0
// Whether warps that stream keys (stream/) do a problem, and how its tiles are dealt to them. Next:
// choose_split.h, which splits tiles into stream-K ranges.
#pragma once

#include "engine/hopper/plan/select_kernel.h"

namespace fa3::hopper {

struct DecodeChoice {
  int row = kNoKernel;  // of kDecodeTable; kNoKernel: they do not
  Variant variant = Variant::kDecode;
};

// The pack and the split go into the launch, if they do.
DecodeChoice select_decode(const Problem& problem, int num_sms, ForwardLaunch* launch);

}  // namespace fa3::hopper
