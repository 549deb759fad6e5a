// SPDX-License-Identifier: Apache-2.0
// Whether a decode kernel does a problem, and how its tiles come to CTAs. Next: choose_split.h,
// which splits the tiles of several sequences.
#pragma once

#include "engine/hopper/plan/select/select_kernel.h"

namespace fa3::hopper {

struct DecodeChoice {
  int row = kNoKernel;  // of kDecodeTable; kNoKernel: no decode kernel does the problem
  Variant variant = Variant::kDecode;
  Tiling tiling;
};

DecodeChoice select_decode(const Problem& problem, const ForwardCall& call, int num_sms);

}  // namespace fa3::hopper
