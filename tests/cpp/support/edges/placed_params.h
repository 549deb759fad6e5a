// SPDX-License-Identifier: Apache-2.0
//
// What PlacedCall keeps of a call: the params of its kind, made by edge_build.cpp.
#pragma once

#include "support/edges/edge_run.h"

namespace fa3::test {

struct PlacedCall::Params {
  fa3_forward_params forward;
  fa3_backward_params backward;
  fa3_append_params append;
};

}  // namespace fa3::test
