// SPDX-License-Identifier: Apache-2.0
//
// Global memory by which CTAs that run beside each other tell each other what they have stored: who
// has stored where, and what whoever waits for a flag is told. Of a warp's stores and loads lane
// 0's are seen.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "clock.h"

namespace fa3::machine {

class GlobalMemory {
 public:
  // `stored_before`: by CTAs that are done.
  explicit GlobalMemory(const std::set<const void*>& stored_before)
      : stored_before_(stored_before) {}

  void store(const void* at, Moment now) { stores_[at] = now; }
  // What a thread reads must be there, and it must have been told so.
  bool has_stored(const void* at) const {
    return stores_.contains(at) || stored_before_.contains(at);
  }
  bool is_known(const void* at, const Clock& knows) const {
    const auto store = stores_.find(at);
    return store == stores_.end() || knows.has(store->second);
  }

  void raise(const uint64_t* flag, const Clock& knows) { told_[flag] = knows; }
  // Nothing of a flag that was raised before the launch.
  void learn(const uint64_t* flag, Clock* knows) const {
    if (const auto told = told_.find(flag); told != told_.end()) knows->learn(told->second);
  }

 private:
  const std::set<const void*>& stored_before_;
  std::map<const void*, Moment> stores_;  // the last one there
  std::map<const uint64_t*, Clock> told_;
};

}  // namespace fa3::machine
