// SPDX-License-Identifier: Apache-2.0
//
// A case whose keys and values lie in a cache: the same numbers elsewhere, so the same result.
#pragma once

#include "support/cases/case.h"
#include "support/cases/inputs.h"

namespace fa3::test {

struct CacheForm {
  int64_t page_size = 0;     // 0: no pages
  bool indexed = false;      // sequences read other entries than their own
  bool padded_left = false;  // some rows before the keys do not count
};
std::ostream& operator<<(std::ostream& out, const CacheForm& form);

// The case as a call on a cache sees it. Everything that it may not look at is NaN, or a number
// that leads out of the cache.
struct Cached {
  Case c;
  Inputs inputs;
};

// `c` has dense keys.
Cached in_cache(const Case& c, const Inputs& inputs, const CacheForm& form);

}  // namespace fa3::test
