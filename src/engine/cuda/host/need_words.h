// SPDX-License-Identifier: Apache-2.0
// What a refusal calls a need.
#pragma once

#include "engine/cuda/host/needs.h"

namespace fa3::cuda {

// Makes a call one of its own: a refusal names it before what is missing.
constexpr bool is_kind(Need need) {
  return need <= Need::kPartial;
}

const char* words_of(Need need);

}  // namespace fa3::cuda
