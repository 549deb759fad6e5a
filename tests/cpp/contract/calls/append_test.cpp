// SPDX-License-Identifier: Apache-2.0
//
// Appending to a cache: new rows are where the tables say, rotated, and nothing else changed.
#include <gtest/gtest.h>

#include <fa3/attention.h>
#include <fa3/tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>

#include "support/cases/case.h"
#include "support/cases/tensor.h"
#include "support/engines.h"
#include "support/random.h"
#include "support/runs/placement.h"

namespace fa3::test {
namespace {

struct Form {
  const char* name;
  fa3_dtype dtype;
  int64_t page_size;  // 0: no pages
  bool indexed, packed;
  int64_t pairs;  // 0: no rotation
  bool interleaved, float_tables, together;
  fa3_dtype quantized = FA3_FLOAT32;  // the cache is of this float8

  bool is_quantized() const { return quantized != FA3_FLOAT32; }
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

constexpr Form kForms[] = {
    {"plain", FA3_FLOAT32, 0, false, false, 0, false, false, false},
    {"indexed", FA3_FLOAT16, 0, true, false, 0, false, false, false},
    {"pages_of_1", FA3_BFLOAT16, 1, false, false, 8, true, false, false},
    {"pages_of_4_packed", FA3_BFLOAT16, 4, true, true, 5, false, false, false},
    {"pages_of_100", FA3_FLOAT32, 100, true, true, 12, true, true, true},
    {"float_tables", FA3_FLOAT16, 7, false, true, 3, true, true, false},
    {"halves", FA3_FLOAT16, 0, false, false, 12, false, false, true},
    {"quantized", FA3_FLOAT32, 0, true, false, 0, false, false, false, FA3_FLOAT8_E4M3},
    {"quantized_pages_of_4", FA3_BFLOAT16, 4, true, true, 5, false, true, false, FA3_FLOAT8_E4M3},
    {"e5m2", FA3_FLOAT16, 0, true, false, 0, false, false, false, FA3_FLOAT8_E5M2},
    {"e5m2_pages_of_4", FA3_FLOAT32, 4, true, true, 5, false, true, false, FA3_FLOAT8_E5M2},
    {"e5m2_turned", FA3_BFLOAT16, 0, false, false, 12, true, true, true, FA3_FLOAT8_E5M2},
    {"float8", FA3_FLOAT8_E4M3, 0, true, false, 0, false, false, false},
    {"float8_pages_of_4", FA3_FLOAT8_E4M3, 4, true, true, 5, true, false, false},
    {"float8_float_tables", FA3_FLOAT8_E4M3, 7, false, false, 12, false, true, true},
    {"e5m2_as_it_is", FA3_FLOAT8_E5M2, 4, true, true, 5, true, false, false},
};

constexpr int64_t kBatch = 3, kRoom = 40, kNew = 9, kQueries = 6, kHeads = 2, kQHeads = 4;
constexpr int64_t kDim = 24, kDimV = 10, kPositions = 80;
constexpr int32_t kUsed[kBatch] = {0, 31, 13};
constexpr int32_t kNewStarts[kBatch + 1] = {0, 9, 9, 14};  // packed: 9, 0 and 5 rows
constexpr int32_t kQueryStarts[kBatch + 1] = {0, 2, 8, 9};
constexpr int32_t kIndex[kBatch] = {4, 0, 2};
constexpr int32_t kFirst[kBatch] = {60, 2, 33};
constexpr float kScales[kBatch][kHeads] = {{0.5f, 0.3f}, {2e-3f, 1.0f}, {0.7f, 100.0f}};

// One call with everything that its form asks for.
struct Call {
  Form form;
  Tensor k_cache, v_cache, k, v, q, rotated, cos, sin;
  std::vector<int32_t> pages;
  int64_t max_pages = 0;
  fa3_append_params params;

  explicit Call(const Form& f) : form(f) {
    const int64_t entries = form.indexed ? kBatch + 2 : kBatch;
    Shape cache{entries, kRoom, kHeads, kDim};
    if (form.page_size > 0) {
      max_pages = (kRoom + form.page_size - 1) / form.page_size;
      cache.batch = entries * max_pages;
      cache.rows = form.page_size;
      for (int64_t i = 0; i < cache.batch; ++i) {
        pages.push_back(static_cast<int32_t>((i * 7 + 3) % cache.batch));  // of no factor 7
      }
    }
    const fa3_dtype cached = form.is_quantized() ? form.quantized : form.dtype;
    k_cache = Tensor(cache, cached, Layout::padded);
    cache.dim = kDimV;
    v_cache = Tensor(cache, cached, Layout::bhsd);
    const int64_t rows = form.packed ? kNewStarts[kBatch] : kNew;
    k = Tensor({form.packed ? 1 : kBatch, rows, kHeads, kDim}, form.dtype, Layout::bhsd);
    v = Tensor({form.packed ? 1 : kBatch, rows, kHeads, kDimV}, form.dtype, Layout::padded);
    const Shape queries{form.packed ? 1 : kBatch, form.packed ? kQueryStarts[kBatch] : kQueries,
                        kQHeads, kDim};
    q = Tensor(queries, form.dtype, Layout::padded);
    rotated = Tensor(queries, form.dtype, Layout::bhsd);
    const fa3_dtype of_tables = form.float_tables ? FA3_FLOAT32 : form.dtype;
    cos = Tensor({1, kPositions, 1, form.pairs}, of_tables);
    sin = cos;
    uint64_t seed = 1;
    for (Tensor* t : {&k_cache, &v_cache, &k, &v, &q, &cos, &sin}) t->randomize(seed++);

    const auto view = [&](const Tensor& t) { return form.packed ? t.packed() : t.dense(); };
    const auto numbers = [](const int32_t* data, int64_t count) {
      return contiguous(data, FA3_INT32, {count});
    };
    fa3_append_params_init(&params);
    params.k_cache = k_cache.dense();
    params.v_cache = v_cache.dense();
    params.k = view(k);
    params.v = view(v);
    params.seqused = numbers(kUsed, kBatch);
    if (form.is_quantized()) {
      params.k_descale = contiguous(kScales, FA3_FLOAT32, {kBatch, kHeads});
      params.v_descale = contiguous(kScales[0], FA3_FLOAT32, {1});
    }
    if (form.packed) params.cu_seqlens_new = numbers(kNewStarts, kBatch + 1);
    if (form.indexed) params.batch_index = numbers(kIndex, kBatch);
    if (max_pages > 0) {
      params.page_table = contiguous(pages.data(), FA3_INT32, {entries, max_pages});
    }
    if (form.pairs > 0) {
      const auto table = [&](const Tensor& t) {
        fa3_tensor view = t.dense();
        view.rank = 2;
        view.shape[0] = kPositions, view.shape[1] = form.pairs;
        view.stride[0] = form.pairs, view.stride[1] = 1;
        return view;
      };
      params.rotary_cos = table(cos);
      params.rotary_sin = table(sin);
      params.rotary_interleaved = form.interleaved ? 1 : 0;
      if (form.float_tables) params.first_position = numbers(kFirst, kBatch);
      params.q = view(q);
      params.q_rotated = view(rotated);
      if (form.packed) params.cu_seqlens_q = numbers(kQueryStarts, kBatch + 1);
      params.queries_share_position = form.together ? 1 : 0;
    }
  }

  int32_t first_position(int64_t b) const { return form.float_tables ? kFirst[b] : kUsed[b]; }

  // Column `col` of a row at `position`.
  float turned(const Tensor& x, int64_t b, int64_t row, int64_t head, int64_t col,
               int64_t position) const {
    const int64_t pair = form.interleaved ? col / 2 : col % std::max<int64_t>(form.pairs, 1);
    if (col >= 2 * form.pairs) return x.get(b, row, head, col);
    const int64_t first = form.interleaved ? 2 * pair : pair;
    const int64_t second = form.interleaved ? first + 1 : pair + form.pairs;
    const double c = cos.get(0, position, 0, pair), s = sin.get(0, position, 0, pair);
    const double left = x.get(b, row, head, first), right = x.get(b, row, head, second);
    return static_cast<float>(col == first ? left * c - right * s : left * s + right * c);
  }

  // The caches as they must be afterwards.
  void expect(Tensor* k_to, Tensor* v_to) const {
    for (int64_t b = 0; b < kBatch; ++b) {
      const int64_t begin = form.packed ? kNewStarts[b] : 0;
      const int64_t count = form.packed ? kNewStarts[b + 1] - begin : kNew;
      const int64_t from = form.packed ? 0 : b;
      for (int64_t i = 0; i < count; ++i) {
        int64_t entry = form.indexed ? kIndex[b] : b, row = kUsed[b] + i;
        if (max_pages > 0) {
          entry = pages[static_cast<size_t>(entry * max_pages + row / form.page_size)];
          row %= form.page_size;
        }
        for (int64_t head = 0; head < kHeads; ++head) {
          for (int64_t col = 0; col < kDim; ++col) {
            const float x = turned(k, from, begin + i, head, col, first_position(b) + i);
            k_to->set(entry, row, head, col, form.is_quantized() ? x / kScales[b][head] : x);
          }
          for (int64_t col = 0; col < kDimV; ++col) {
            const float x = v.get(from, begin + i, head, col);
            v_to->set(entry, row, head, col, form.is_quantized() ? x / kScales[0][0] : x);
          }
        }
      }
    }
  }
};

// Bit for bit where nothing is rotated; products of 16-bit numbers are exact in float32 too.
testing::AssertionResult are_close(const Tensor& got, const Tensor& want) {
  const Values a = got.values(), b = want.values();
  const double ulp = want.dtype() == FA3_FLOAT32       ? 0x1p-22
                     : want.dtype() == FA3_FLOAT16     ? 0x1p-10
                     : want.dtype() == FA3_BFLOAT16    ? 0x1p-7
                     : want.dtype() == FA3_FLOAT8_E4M3 ? 0x1p-3
                                                       : 0x1p-2;
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    const bool alike =
        std::abs(a.numbers[i] - b.numbers[i]) <= ulp * std::max(1.0, std::abs(b.numbers[i]));
    if (!alike && !(std::isnan(a.numbers[i]) && std::isnan(b.numbers[i]))) {
      return testing::AssertionFailure()
             << "element " << i << ": " << a.numbers[i] << ", expected " << b.numbers[i];
    }
  }
  return testing::AssertionSuccess();
}

// The call with its tensors in the memory of `device`; "" or what went wrong.
std::string append(Call* call, fa3_device_type device) {
  Placement placement(device);
  fa3_append_params p = call->params;
  placement.output(&call->k_cache, &p.k_cache);
  placement.output(&call->v_cache, &p.v_cache);
  placement.input(call->k, &p.k);
  placement.input(call->v, &p.v);
  for (fa3_tensor* numbers : {&p.seqused, &p.cu_seqlens_new, &p.cu_seqlens_q, &p.batch_index,
                              &p.page_table, &p.first_position, &p.k_descale, &p.v_descale}) {
    placement.input(*numbers, numbers);
  }
  if (call->form.pairs > 0) {
    placement.input(call->cos, &p.rotary_cos);
    placement.input(call->sin, &p.rotary_sin);
    const bool in_place = p.q.data == p.q_rotated.data;
    if (in_place) {
      placement.output(&call->q, &p.q);
      p.q_rotated = p.q;
    } else {
      placement.input(call->q, &p.q);
      placement.output(&call->rotated, &p.q_rotated);
    }
  }
  if (fa3_append(&p, nullptr) != FA3_OK) return fa3_last_error();
  return placement.fetch();
}

using FormIn = std::tuple<Form, fa3_device_type>;

std::vector<fa3_device_type> memories() {
  std::vector<fa3_device_type> found;
  for (const EngineUnderTest& engine : engines_under_test()) {
    if (std::find(found.begin(), found.end(), engine.memory) == found.end()) {
      found.push_back(engine.memory);
    }
  }
  return found;
}

class Append : public testing::TestWithParam<FormIn> {
 protected:
  Form form() const { return std::get<0>(GetParam()); }
  fa3_device_type memory() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(form, Append,
                         testing::Combine(testing::ValuesIn(kForms), testing::ValuesIn(memories())),
                         [](const auto& info) {
                           const bool gpu = std::get<1>(info.param) == FA3_CUDA;
                           return std::string(std::get<0>(info.param).name) + (gpu ? "_gpu" : "");
                         });

TEST_P(Append, puts_rows_where_they_belong_and_changes_nothing_else) {
  Call call(form());
  Tensor k_want = call.k_cache, v_want = call.v_cache;
  call.expect(&k_want, &v_want);
  const Tensor k_before = call.k, q_before = call.q;
  ASSERT_EQ(append(&call, memory()), "");
  EXPECT_EQ(call.v_cache.memory(), v_want.memory());
  if (call.form.pairs == 0) {
    EXPECT_EQ(call.k_cache.memory(), k_want.memory());
  }
  EXPECT_TRUE(are_close(call.k_cache, k_want));
  EXPECT_EQ(call.k_cache.find_damaged_guard(), "");
  EXPECT_EQ(call.k.memory(), k_before.memory());
  EXPECT_EQ(call.q.memory(), q_before.memory());
}

TEST_P(Append, rotates_queries_by_their_positions) {
  Call call(form());
  if (call.form.pairs == 0) GTEST_SKIP() << "this form rotates nothing";
  ASSERT_EQ(append(&call, memory()), "");
  Tensor want = call.rotated;
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t begin = call.form.packed ? kQueryStarts[b] : 0;
    const int64_t count = call.form.packed ? kQueryStarts[b + 1] - begin : kQueries;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = call.first_position(b) + (call.form.together ? 0 : i);
      const int64_t entry = call.form.packed ? 0 : b;
      for (int64_t head = 0; head < kQHeads; ++head) {
        for (int64_t col = 0; col < kDim; ++col) {
          want.set(entry, begin + i, head, col,
                   call.turned(call.q, entry, begin + i, head, col, position));
        }
      }
    }
  }
  EXPECT_EQ(call.rotated.find_unwritten(), "");
  EXPECT_TRUE(are_close(call.rotated, want));
  const std::vector<uint32_t> apart = call.rotated.element_bits();
  Call in_place(form());
  in_place.params.q_rotated = in_place.params.q;
  ASSERT_EQ(append(&in_place, memory()), "");
  EXPECT_EQ(in_place.q.element_bits(), apart);
}

// Numbers that lead out of the cache or of the tables, where nobody looks at them.
TEST_P(Append, writes_no_row_that_has_no_place) {
  if (memory() == FA3_CPU) GTEST_SKIP() << "in host memory such numbers are refused";
  constexpr int32_t kWrong[] = {-1, 1 << 30, INT32_MIN};
  for (const int32_t wrong : kWrong) {
    Call call(form());
    const std::vector<int32_t> used = {wrong, kUsed[1], wrong};
    call.params.seqused.data = const_cast<int32_t*>(used.data());
    for (size_t i = 0; i < call.pages.size(); i += 2) call.pages[i] = wrong;
    ASSERT_EQ(append(&call, memory()), "");
    EXPECT_EQ(call.k_cache.find_damaged_guard() + call.v_cache.find_damaged_guard(), "");
  }
}

struct BadAppend {
  const char* name;
  std::function<void(Call*)> change;
  const char* words;
};
void PrintTo(const BadAppend& bad, std::ostream* out) {
  *out << bad.name;
}

constexpr int32_t kNegative[kBatch] = {3, -1, 0};
constexpr int32_t kTooMany[kBatch] = {3, 4, 36};
constexpr int32_t kLate[kBatch] = {0, 0, 78};
constexpr int32_t kWrongIndex[kBatch] = {0, 5, 1};

const BadAppend kBad[] = {
    {"negative_length", [](Call* c) { c->params.seqused.data = const_cast<int32_t*>(kNegative); },
     "seqused: expected a length in [0, 40] for sequence 1"},
    {"no_room", [](Call* c) { c->params.seqused.data = const_cast<int32_t*>(kTooMany); },
     "seqused: expected a length in [0, 35] for sequence 2"},
    {"page_out_of_range", [](Call* c) { c->pages[static_cast<size_t>(4 * c->max_pages)] = 1000; },
     "page_table: expected a page in [0, 50) of k at entry (4, 0)"},
    {"entry_out_of_range",
     [](Call* c) { c->params.batch_index.data = const_cast<int32_t*>(kWrongIndex); },
     "batch_index: expected an entry in [0, 5) of page_table for sequence 1, got 5"},
    {"position_beyond_the_tables",
     [](Call* c) {
       c->params.first_position = c->params.seqused;
       c->params.first_position.data = const_cast<int32_t*>(kLate);
     },
     "rotary_cos: expected a row for each of the positions 78 to 82 of sequence 2"},
    {"too_many_pairs",
     [](Call* c) { c->params.rotary_cos.shape[1] = c->params.rotary_sin.shape[1] = 13; },
     "rotary_cos: expected between 1 and 12 pairs"},
    {"sin_alone", [](Call* c) { c->params.rotary_cos = {}; },
     "rotary_cos, rotary_sin: expected both"},
    {"queries_without_a_place", [](Call* c) { c->params.q_rotated = {}; },
     "q, q_rotated: expected both"},
    {"scales_of_a_cache_without",
     [](Call* c) { c->params.k_descale = contiguous(kScales[0], FA3_FLOAT32, {1}); },
     "k_descale: expected it only with k_cache in float8, got bfloat16"},
    {"scales_of_rows_that_are_float8",
     [](Call* c) {
       for (fa3_tensor* t : {&c->params.k_cache, &c->params.v_cache, &c->params.k, &c->params.v}) {
         t->dtype = FA3_FLOAT8_E4M3;
       }
       c->params.v_descale = contiguous(kScales[0], FA3_FLOAT32, {1});
     },
     "v_descale: expected none, as k and v are float8_e4m3 already"},
    {"rows_of_the_other_float8",
     [](Call* c) {
       for (fa3_tensor* t : {&c->params.k_cache, &c->params.v_cache}) t->dtype = FA3_FLOAT8_E5M2;
       for (fa3_tensor* t : {&c->params.k, &c->params.v}) t->dtype = FA3_FLOAT8_E4M3;
     },
     "k: expected float32 or float16 or bfloat16 or float8_e5m2, got float8_e4m3"},
    {"other_heads", [](Call* c) { c->params.k.shape[1] = 1; },
     "k: expected the heads of k_cache = 2"},
    {"cache_over_the_new_rows", [](Call* c) { c->params.k.data = c->params.k_cache.data; },
     "k_cache:"},
};

class BadAppends : public testing::TestWithParam<BadAppend> {};
INSTANTIATE_TEST_SUITE_P(append, BadAppends, testing::ValuesIn(kBad),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(BadAppends, are_explained_and_change_nothing) {
  Call call(kForms[3]);  // pages of 4, indexed, packed, rotated
  const Tensor k_before = call.k_cache, v_before = call.v_cache;
  GetParam().change(&call);
  EXPECT_EQ(fa3_append(&call.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fa3_last_error()).find(GetParam().words), std::string::npos)
      << fa3_last_error();
  EXPECT_EQ(call.k_cache.memory(), k_before.memory());
  EXPECT_EQ(call.v_cache.memory(), v_before.memory());
  EXPECT_TRUE(call.rotated.untouched());
}

}  // namespace
}  // namespace fa3::test
