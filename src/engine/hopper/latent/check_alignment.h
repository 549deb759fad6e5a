// SPDX-License-Identifier: Apache-2.0
// Whether copies of 16 bytes find all rows of a call. A question brings no address: then strides
// decide.
#pragma once

#include <fa3/status.h>

#include <cstdint>
#include <initializer_list>

#include "core/problem.h"

namespace fa3::hopper {

// Strides in bytes.
Status check_alignment(const char* name, const void* data, std::initializer_list<int64_t> strides);
Status check_row_alignment(const char* name, const Operand& rows);

}  // namespace fa3::hopper
