// SPDX-License-Identifier: Apache-2.0
//
// fa3_forward_validate names the number that would lead a call astray, in the memory of every
// engine.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "contract/fixture.h"
#include "support/cases/cache.h"

namespace fa3::test {
namespace {

class Validate : public EngineTest {
 protected:
  // "" or the sentence.
  std::string verdict(const Case& c, const Inputs& inputs) const {
    Tensor o(c.o_shape(), c.o_dtype(), c.out), lse(c.lse_shape(), FA3_FLOAT32);
    fa3_forward_params params = forward_params(engine().id, c, inputs, o, lse);
    Placement placement(engine().memory);
    place(c, inputs, &o, &lse, &placement, &params);
    return fa3_forward_validate(&params, nullptr) == FA3_OK ? "" : fa3_last_error();
  }
};
FA3_FOR_EVERY_ENGINE(Validate);

struct Wrong {
  std::function<void(Case*, Inputs*)> change;
  const char* words;
};

TEST_P(Validate, names_the_entry_of_a_cache) {
  const Case c = dense_case(2, 3, 40, 2, 1, 64, 64, FA3_BFLOAT16);
  const Cached good = in_cache(c, make_inputs(c), {.page_size = 8, .indexed = true});
  EXPECT_EQ(verdict(good.c, good.inputs), "");
  const Wrong wrong[] = {
      {[](Case*, Inputs* in) {
         in->page_table[static_cast<size_t>(in->batch_index[1] * in->max_pages + 2)] = -5;
       },
       "2), which sequence 1 uses, got -5"},
      {[](Case*, Inputs* in) { in->batch_index[0] = 9; }, "sequence 0, got 9"},
      {[](Case* at, Inputs*) { at->k.used[1] = 1000; }, "sequence 1, got 1000"},
  };
  for (const Wrong& w : wrong) {
    Cached bad = good;
    w.change(&bad.c, &bad.inputs);
    EXPECT_NE(verdict(bad.c, bad.inputs).find(w.words), std::string::npos)
        << w.words << ": " << verdict(bad.c, bad.inputs);
  }
}

TEST_P(Validate, names_the_entry_of_packed_lengths) {
  Case c = dense_case(2, 0, 0, 2, 1, 64, 64, FA3_BFLOAT16);
  c.q = {.owned = {3, 4}};
  c.k = {.owned = {5, 7}, .used = {5, 2}};
  Inputs inputs = make_inputs(c);
  EXPECT_EQ(verdict(c, inputs), "");
  Case longer = c;
  longer.k.used[1] = 8;
  EXPECT_NE(verdict(longer, inputs).find("seqused_k: expected a length in [0, 7]"),
            std::string::npos);
  inputs.cu_k[1] = 13;
  EXPECT_NE(verdict(c, inputs).find("cu_seqlens_k: expected values that never decrease"),
            std::string::npos);
}

}  // namespace
}  // namespace fa3::test
