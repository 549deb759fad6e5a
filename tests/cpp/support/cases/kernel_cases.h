// SPDX-License-Identifier: Apache-2.0
//
// Shapes and scores that drive a tiled kernel into each of its branches, for any head dims: run on
// every engine by scores_test.cpp, on every Hopper kernel by tests/cuda/forward_check.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "support/cases/case.h"

namespace fa3::test {

struct NamedCase {
  const char* name;
  Case c;
};

std::vector<NamedCase> kernel_cases(int64_t dim, int64_t dim_v, fa3_dtype dtype);

}  // namespace fa3::test
