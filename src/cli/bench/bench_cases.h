// SPDX-License-Identifier: Apache-2.0
//
// The sweep of `fa3 bench`: comma lists in, one case per combination out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/call/operands.h"

namespace fa3::cli {

// An empty list follows the option it belongs to: seqlen_k is seqlen, kv_heads is heads, head_dim_v
// is head_dim.
struct SweepFlags {
  std::vector<std::string> engine = {"auto"}, pass = {"fwd"}, dtype = {"fp32"};
  std::vector<int64_t> head_dim = {64}, head_dim_v, seqlen = {4096}, seqlen_k;
  std::vector<int64_t> batch = {1}, heads = {8}, kv_heads;
  std::vector<int64_t> causal = {0}, threads = {0};
};

struct BenchCase {
  std::string engine;
  bool backward = false;
  fa3_dtype dtype = FA3_FLOAT32;
  Shape shape;
  bool causal = false;
  int threads = 1;
};

// Engines vary fastest, so that rivals on one shape run right after each other.
std::vector<BenchCase> sweep(const SweepFlags& flags);

}  // namespace fa3::cli
