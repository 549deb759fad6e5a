// SPDX-License-Identifier: Apache-2.0
// Which kernel takes a score function. None is built: rows of the tables are compiled for it
// (launch/score_program.h). Pure functions. Next: plan_forward.cpp.
#pragma once

#include "core/error.h"
#include "engine/hopper/plan/select/select_decode.h"

namespace fa3::hopper {

// A decode kernel, if one does the problem.
DecodeChoice select_score_decode(const Problem& problem, const ForwardCall& call, int num_sms);

// Else a kernel whose tiles are whole: the row of score_table.h, or null.
const KernelInstance* select_score_kernel(const Problem& problem);

// Refuses what neither does, and few queries that another engine is sooner done with.
Status check_score(const Problem& problem, const ForwardCall& call, int num_sms);

}  // namespace fa3::hopper
