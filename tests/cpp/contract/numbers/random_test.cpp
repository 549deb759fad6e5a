// SPDX-License-Identifier: Apache-2.0
//
// Properties over random cases. FA3_TEST_SEED=N starts elsewhere; a failing case is made smaller
// while it still fails, and printed as it would be written down.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "contract/fixture.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

class RandomShapes : public EngineTest {};
FA3_FOR_EVERY_ENGINE(RandomShapes);

uint64_t first_seed() {
  const char* seed = std::getenv("FA3_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 70000;
}

void halve(std::vector<int32_t>* lengths) {
  for (int32_t& length : *lengths) length /= 2;
}

// Cases that are simpler than `c` in one respect each.
std::vector<Case> simpler(const Case& c) {
  const std::function<void(Case*)> changes[] = {
      [](Case* s) { s->sink = false; },
      [](Case* s) { s->softcap = 0; },
      [](Case* s) { s->causal = false; },
      [](Case* s) { s->left = s->right = -1, s->shift = 0; },
      [](Case* s) { s->shift = 0; },
      [](Case* s) { s->chunk = 0; },
      [](Case* s) { s->scale = FA3_SCALE_AUTO; },
      [](Case* s) { s->o_float32 = false; },
      [](Case* s) { s->dtype = FA3_FLOAT32; },
      [](Case* s) { s->in = s->out = Layout::bshd; },
      [](Case* s) { s->num_threads = 1; },
      [](Case* s) { s->heads_q = s->heads_k; },
      [](Case* s) { s->heads_q = s->heads_k = 1; },
      [](Case* s) { s->q.used.clear(), s->k.used.clear(); },
      [](Case* s) { s->q.spare_rows = s->k.spare_rows = 0; },
      [](Case* s) { s->q.rows /= 2, halve(&s->q.owned), halve(&s->q.used); },
      [](Case* s) { s->k.rows /= 2, halve(&s->k.owned), halve(&s->k.used); },
      [](Case* s) { s->dim = (s->dim + 1) / 2; },
      [](Case* s) { s->dim_v = (s->dim_v + 1) / 2; },
      [](Case* s) {
        const bool listed =
            s->q.packed() || s->k.packed() || !s->q.used.empty() || !s->k.used.empty();
        if (!listed) s->batch = (s->batch + 1) / 2;
      },
  };
  std::vector<Case> cases;
  for (const auto& change : changes) {
    cases.push_back(c);
    change(&cases.back());
    if (describe(cases.back()) == describe(c)) cases.pop_back();
  }
  return cases;
}

// The simplest case found that still fails, in a bounded number of attempts.
Case shrink(Case failing, const std::function<bool(const Case&)>& passes) {
  int attempts = 0;
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const Case& candidate : simpler(failing)) {
      if (++attempts > 300) return failing;
      if (passes(candidate)) continue;
      failing = candidate;
      smaller = true;
      break;
    }
  }
  return failing;
}

TEST_P(RandomShapes, agree_with_float64) {
  for (uint64_t i = 0; i < by_effort<uint64_t>(12, 80, 3000); ++i) {
    const Case c = random_case(engine(), first_seed() + i);
    const auto result = agrees(c);
    if (result) continue;
    const Case least = shrink(c, [&](const Case& s) { return bool{agrees(s)}; });
    ADD_FAILURE() << "FA3_TEST_SEED=" << first_seed() + i << ": " << result.message()
                  << "\nthe simplest case that fails: " << agrees(least).message();
    return;
  }
}

// The workspace that a shape without data asks for serves every call of that shape.
TEST_P(RandomShapes, a_workspace_planned_without_data_is_large_enough) {
  for (uint64_t i = 0; i < 200; ++i) {
    const Case c = random_case(engine(), first_seed() + i);
    if (!does(c)) continue;
    const Inputs inputs = make_inputs(c);
    Tensor o(c.o_shape(), c.o_dtype()), lse(c.lse_shape(), FA3_FLOAT32);
    fa3_forward_params call = forward_params(engine().id, c, inputs, o, lse);
    Placement placement(engine().memory);
    place(c, inputs, &o, &lse, &placement, &call);
    fa3_forward_params query = call;
    fa3_options& options = query.options;
    for (fa3_tensor* tensor :
         {&query.q, &query.k, &query.v, &query.o, &query.lse, &query.sink, &options.cu_seqlens_q,
          &options.cu_seqlens_k, &options.seqused_q, &options.seqused_k}) {
      tensor->data = nullptr;
    }
    size_t planned = 0, needed = 0;
    ASSERT_EQ(fa3_forward_workspace_size(&query, &planned), FA3_OK) << fa3_last_error() << c;
    ASSERT_EQ(fa3_forward_workspace_size(&call, &needed), FA3_OK) << fa3_last_error() << c;
    ASSERT_GE(planned, needed) << c;
  }
}

}  // namespace
}  // namespace fa3::test
