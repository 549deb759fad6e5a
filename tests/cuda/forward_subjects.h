// SPDX-License-Identifier: Apache-2.0
// Which kernels fa3_gpu_check checks, and how it launches them: rows of the catalogue, also where
// another would be chosen, and the plain kernel of the reading guide; besides, keys in caches and
// tiles that are split.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/describe/describe.h"
#include "engine/hopper/kernels/row.h"
#include "support/cases/cache.h"
#include "support/cases/inputs.h"
#include "support/runs/placement.h"

namespace fa3::test {

// A kernel to be checked: its tile's head dims, and how it is launched.
struct Subject {
  std::string name;
  int head_dim, head_dim_v;
  fa3_dtype dtype;  // of q; of k and v too, unless the cache is quantized
  hopper::Variant variant;
  std::function<cudaError_t(const Problem&, Placement&)> launch;
  std::optional<CacheForm> cache{};  // where the keys lie instead
  bool only_ordinary_scores = false;
  bool quantized_cache = false;
  bool transposes_v = false;                 // of e4m3, that lies in rows
  bool dropout = false;                      // for calls with dropout
  std::optional<hopper::Kernel> stream_k{};  // calls for kernels that do nothing else
};

// Kinds of kernels, one after the other; `plain` has the tutorial's kernel by head dim.
enum class Kind { forward, plain, e4m3, cache, stream_k, decode, dropout };
const char* name_of(Kind kind);

struct SubjectRow {
  Kind kind;
  int head_dim, head_dim_v;
  const hopper::Row* row;  // null: a plain kernel

  // The generated source that has the kernel.
  std::string source() const;
};
// Without kernels of block masks and those that continue a partial result.
std::vector<SubjectRow> subject_rows();

const char* name_of(hopper::Element element);

// The subjects of a row whose Q, or for e4m3 O, has this type.
std::vector<Subject> subjects_of(const SubjectRow& row, hopper::Element element);

// Whether it does a case with these inputs. A general kernel does all that a dense one does.
bool does(const Subject& subject, const Case& c, const Inputs& inputs);

}  // namespace fa3::test
