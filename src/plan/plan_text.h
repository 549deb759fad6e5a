// SPDX-License-Identifier: Apache-2.0
//
// A Plan in words, for fa3_*_plan_text and `fa3 info`.
#pragma once

#include <string>

#include "core/plan.h"

namespace fa3 {

std::string plan_text(const Plan& plan);

}  // namespace fa3
