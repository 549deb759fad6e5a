// SPDX-License-Identifier: Apache-2.0
//
// A call that is refused says so in the words of the question, and changes nothing.
#include <gtest/gtest.h>

#include <functional>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

class Refusal : public EngineTest {
 protected:
  // A prepared call, in the engine's memory.
  struct Call {
    const EngineUnderTest& engine;
    Inputs inputs;
    Tensor o, lse;
    Placement placement;
    fa3_forward_params params;

    Call(const EngineUnderTest& e, const Case& c)
        : engine(e),
          inputs(make_inputs(c)),
          o(c.o_shape(), c.o_dtype(), c.out),
          lse(c.lse_shape(), FA3_FLOAT32),
          placement(e.memory),
          params(forward_params(e.id, c, inputs, o, lse)) {
      place(c, inputs, &o, &lse, &placement, &params);
    }
    fa3_status run(size_t bytes, size_t offset = 0) {
      auto* workspace = static_cast<std::byte*>(placement.workspace(bytes + offset));
      return fa3_forward(&params, workspace + offset, bytes, nullptr);
    }
    bool nothing_changed() { return placement.fetch().empty() && o.untouched() && lse.untouched(); }
  };
};
FA3_FOR_EVERY_ENGINE(Refusal);

// Each has one thing that some engine may not take.
std::vector<Case> awkward_cases() {
  const Case plain = dense_case(2, 70, 90, 4, 2, 64, 64, FA3_BFLOAT16);
  const std::function<void(Case*)> changes[] = {
      [](Case* c) { c->dtype = FA3_FLOAT32; },
      [](Case* c) { c->o_float32 = true; },
      [](Case* c) { c->dim = 60; },
      [](Case* c) { c->dim_v = 1; },
      [](Case* c) { c->dim = c->dim_v = 512; },
      [](Case* c) { c->in = Layout::padded; },
      [](Case* c) { c->out = Layout::padded; },
      [](Case* c) { c->left = 10; },
      [](Case* c) { c->right = 3; },
      [](Case* c) { c->chunk = 30; },
      [](Case* c) { c->softcap = 9; },
      [](Case* c) { c->sink = true; },
      [](Case* c) {
        c->k.used = {90, 40};
      },
      [](Case* c) {
        c->q = {.owned = {60, 70}}, c->k = {.owned = {80, 90}};
      },
  };
  std::vector<Case> cases;
  for (const auto& change : changes) {
    cases.push_back(plain);
    change(&cases.back());
  }
  return cases;
}

TEST_P(Refusal, is_that_of_the_question_and_changes_nothing) {
  int refused = 0;
  for (const Case& c : awkward_cases()) {
    const std::string reason = refusal(engine(), c, Pass::forward);
    if (reason.empty()) continue;
    ++refused;
    Call call(engine(), c);
    EXPECT_EQ(call.run(1 << 20), FA3_UNSUPPORTED) << c;
    EXPECT_EQ(fa3_last_error(), reason) << c;
    EXPECT_TRUE(call.nothing_changed()) << c;
  }
  if (refused == 0) GTEST_SKIP() << engine().name << " refuses none of these cases";
}

TEST_P(Refusal, of_outputs_that_overlap_changes_nothing) {
  const auto shifted = [](fa3_tensor view, const fa3_tensor& onto, int64_t bytes) {
    view.data = static_cast<std::byte*>(onto.data) + bytes;
    return view;
  };
  const std::function<void(fa3_forward_params*)> overlaps[] = {
      [&](fa3_forward_params* p) { p->o = shifted(p->o, p->q, 0); },
      [&](fa3_forward_params* p) { p->o = shifted(p->o, p->k, 32); },
      [&](fa3_forward_params* p) { p->o = shifted(p->o, p->v, -32); },
      [&](fa3_forward_params* p) { p->lse = shifted(p->lse, p->q, 64); },
      [&](fa3_forward_params* p) { p->lse = shifted(p->lse, p->o, 16); },
      [&](fa3_forward_params* p) { p->o.stride[1] = p->o.stride[2]; },  // its rows overlap
  };
  for (const Case& c : in_each_dtype(dense_case(2, 70, 90, 2, 2, 64, 64))) {
    for (const auto& overlap : overlaps) {
      Call call(engine(), c);
      overlap(&call.params);
      EXPECT_EQ(call.run(1 << 20), FA3_INVALID_ARGUMENT)
          << "overlap " << &overlap - overlaps << "; " << c;
      EXPECT_TRUE(call.nothing_changed()) << "overlap " << &overlap - overlaps << "; " << c;
    }
  }
}

TEST_P(Refusal, of_a_workspace_too_small_or_unaligned_changes_nothing) {
  for (const Case& c : in_each_dtype(dense_case(2, 70, 90, 2, 2, 64, 64))) {
    Call call(engine(), c);
    size_t needed = 0;
    ASSERT_EQ(fa3_forward_workspace_size(&call.params, &needed), FA3_OK) << fa3_last_error();
    if (needed == 0) GTEST_SKIP() << engine().name << " needs no workspace";
    EXPECT_EQ(call.run(needed - 1), FA3_WORKSPACE_TOO_SMALL) << c;
    if (call.params.q.device_type == FA3_CUDA) {  // a CPU's memory may lie anywhere
      EXPECT_EQ(call.run(needed, 16), FA3_INVALID_ARGUMENT) << c;
    }
    EXPECT_TRUE(call.nothing_changed()) << c;
  }
}

}  // namespace
}  // namespace fa3::test
