// SPDX-License-Identifier: Apache-2.0
// Calls on latent caches by an engine, through the C interface.
#pragma once

#include <fa3/mla.h>

#include <string>

#include "contract/fixture.h"
#include "support/memory/guarded_memory.h"

namespace fa3::test {

// Call has the tensors of a Case. The others are functions of its parameters in the C interface.
template <class Call, class Case, auto Supported, auto WorkspaceSize, auto Start>
class LatentCalls : public EngineTest {
 protected:
  // "", or what is wrong. A call that the engine refuses is left out.
  std::string run(const Case& c) {
    Call call(c, engine().memory);
    auto params = call.params();
    params.engine = engine().id;
    const fa3_status asked = Supported(&params);
    if (asked == FA3_UNSUPPORTED) {
      reason_ = fa3_last_error();
      leave_out(reason_);
      return "";
    }
    ++done_;
    size_t bytes = 0;
    if (asked != FA3_OK || WorkspaceSize(&params, &bytes) != FA3_OK) return fa3_last_error();
    GuardedMemory workspace(engine().memory, bytes, 256);  // of NaN
    if (Start(&params, workspace.data(), bytes, nullptr) != FA3_OK) return fa3_last_error();
    return call.compare();
  }

  void TearDown() override {
    if (done_ == 0) GTEST_SKIP() << engine().name << ": " << reason_;
  }

 private:
  int done_ = 0;
  std::string reason_;
};

}  // namespace fa3::test
