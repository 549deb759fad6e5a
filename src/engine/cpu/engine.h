// SPDX-License-Identifier: Apache-2.0
//
// The engines that run on every CPU. Read reference.cpp first, then standard.cpp, then forward.cpp.
#pragma once

#include "engine/engine.h"

namespace fa3::cpu {

extern const Engine kCpuEngine;
extern const Engine kReferenceEngine;
extern const Engine kStandardEngine;

}  // namespace fa3::cpu
