// SPDX-License-Identifier: Apache-2.0
// What the backward's kernels are checked on, by shapes and masks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "core/dropout/dropout.h"
#include "core/mask/mask_rule.h"

namespace fa3::testing {

// Lengths of their own: packed one after the other, or each in a batch entry of the longest length.
struct Side {
  std::vector<int> owned;
  std::vector<int> used;  // empty: all
  int spare = 0;          // packed rows that no sequence owns
  bool packed = true;
};

struct BackwardCase {
  int batches, heads, kv_heads, seqlen_q, seqlen_k;
  bool causal = false;
  int head_dim_less = 0;  // columns less than the kernel's
  float q_sigma = 1.0f;
  bool d_lse = false;
  bool deterministic = false;
  int left = -1, right = -1;
  float softcap = 0.0f;
  bool sink = false;
  int shift = 0;  // of the window
  float dropout = 0.0f;
  const char* varlen = nullptr;  // its name; then lengths come from:
  Side q, k;
  int sms = 0;  // for which it is planned; 0: those of the device

  std::string name() const {
    char text[200];
    std::snprintf(
        text, sizeof text, "b%d h%d:%d %dx%d%s%s%s%s%s%s%s%s%s%s%s%s%s", batches, heads, kv_heads,
        seqlen_q, seqlen_k, causal ? " causal" : "",
        left >= 0 ? (" left " + std::to_string(left)).c_str() : "",
        right >= 0 ? (" right " + std::to_string(right)).c_str() : "",
        shift ? (" shift " + std::to_string(shift)).c_str() : "", dropout > 0 ? " dropout" : "",
        softcap > 0 ? (" softcap " + std::to_string(int(softcap))).c_str() : "",
        sms > 0 ? (" on " + std::to_string(sms)).c_str() : "", sink ? " sink" : "",
        head_dim_less ? " short-head" : "", q_sigma != 1.0f ? " sigma" : "", d_lse ? " dlse" : "",
        deterministic ? " deterministic" : "", varlen ? varlen : "");
    return text;
  }
  MaskRuleOf<int> mask() const {
    const auto reach = [](int side, int outwards) {
      return side < 0 ? MaskRuleOf<int>::kUnbounded : side + outwards;
    };
    return {reach(left, -shift), causal ? 0 : reach(right, shift)};
  }
  Dropout drops() const {
    return {.threshold = dropout_threshold(dropout), .seed = 0x123456789abcdef, .offset = 77};
  }
  bool dense() const { return !varlen && left < 0 && right < 0 && softcap == 0; }
};

inline int longest(const std::vector<int>& lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

inline BackwardCase ragged_case(const char* name, int heads, int kv_heads, const Side& q,
                                const Side& k) {
  BackwardCase c{int(q.owned.size()), heads, kv_heads, longest(q.owned), longest(k.owned)};
  c.varlen = name;
  c.q = q;
  c.k = k;
  return c;
}

inline std::vector<int> many_lengths(int count, int longest, int seed) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back((i * 7919 + seed) % (longest + 1));
  return lengths;
}

// Windows, softcap, sinks and lengths; memory that belongs to no sequence is NaN.
inline std::vector<BackwardCase> masked_cases() {
  std::vector<BackwardCase> all;
  const auto add = [&](BackwardCase c, auto change) {
    change(c);
    all.push_back(c);
    c.deterministic = !c.deterministic;
    all.push_back(c);
  };
  const auto window = [](int left, int right) {
    return [=](BackwardCase& c) { c.left = left, c.right = right; };
  };
  add({1, 1, 1, 64, 128}, window(10, 5));
  add({2, 2, 2, 700, 700, true}, window(128, -1));
  add({1, 3, 1, 500, 900}, window(200, 77));
  add({1, 2, 1, 1000, 600}, window(333, -1));  // queries that see no key
  add({1, 2, 2, 300, 1100}, window(100, 30));  // keys that no query sees
  add({1, 2, 2, 600, 600}, window(-1, 100));
  add({1, 2, 2, 400, 350}, window(0, 0));
  add({1, 8, 1, 391, 591, true}, window(60, -1));
  const auto beside = [](int left, int right, int shift) {  // queries and keys see nothing
    return [=](BackwardCase& c) { c.left = left, c.right = right, c.shift = shift; };
  };
  add({1, 2, 2, 600, 600}, beside(-1, 0, -1));
  add({1, 2, 1, 600, 600}, beside(0, -1, 1));
  add({2, 3, 1, 500, 700}, beside(100, 60, -250));
  add({1, 4, 2, 700, 400}, beside(30, 100, 200));
  add({1, 2, 2, 300, 300}, beside(5, 5, 400));  // nobody sees anything
  for (int s = 1; s <= 300; s += 37) add({1, 1, 1, s, 301 - s}, window(s / 3, 40));
  const auto sink = [](BackwardCase& c) { c.sink = true; };
  add({2, 6, 2, 300, 400}, sink);
  add({1, 4, 1, 400, 300, true, 0, 1.0f, true}, sink);
  add({1, 2, 2, 300, 300, true}, [](BackwardCase& c) { c.sink = true, c.left = 50; });
  const auto cap = [](float softcap, float q_sigma) {
    return [=](BackwardCase& c) { c.softcap = softcap, c.q_sigma = q_sigma; };
  };
  add({1, 1, 1, 64, 128}, cap(30, 1));
  add({2, 4, 2, 300, 500}, cap(30, 1));
  add({1, 2, 2, 500, 500, true}, cap(8, 8));      // large scores
  add({1, 2, 2, 500, 500, true}, cap(50, 0.1f));  // small ones
  add({1, 2, 1, 400, 500, true},
      [](BackwardCase& c) { c.softcap = 15, c.left = 150, c.sink = true, c.d_lse = true; });

  const Side q{.owned = {300, 0, 1, 200, 64, 0}, .spare = 3};
  const Side k{.owned = {301, 5, 0, 200, 500, 0}, .spare = 70};
  const Side q_used{.owned = {300, 0, 7, 200, 64, 250}, .used = {171, 0, 7, 64, 0, 249}};
  const Side k_used{.owned = {301, 5, 10, 200, 500, 400}, .used = {200, 5, 0, 199, 413, 80}};
  const auto nothing = [](BackwardCase&) {};
  const auto causal = [](BackwardCase& c) { c.causal = true; };
  add(ragged_case(" packed", 2, 2, q, k), nothing);
  add(ragged_case(" packed", 3, 1, q, k), causal);
  add(ragged_case(" packed", 8, 2, q, k), [](BackwardCase& c) { c.causal = c.d_lse = true; });
  add(ragged_case(" packed-used", 2, 2, q_used, k_used), nothing);
  add(ragged_case(" packed-used", 4, 1, q_used, k_used), causal);
  add(ragged_case(" packed", 2, 1, q, k), window(90, 20));
  add(ragged_case(" packed", 2, 1, q, k), beside(90, 20, -110));
  add(ragged_case(" packed-used", 2, 2, q_used, k_used), beside(0, -1, 40));
  add(ragged_case(" packed-used", 2, 2, q_used, k_used), sink);
  add(ragged_case(" packed", 2, 2, q, k), cap(20, 1));
  add(ragged_case(" packed-one-key", 2, 2, {.owned = {5, 64, 0, 3}}, {.owned = {1, 1, 1, 1}}),
      nothing);
  add(ragged_case(" packed-many-short", 2, 2, {.owned = many_lengths(400, 6, 3)},
                  {.owned = many_lengths(400, 9, 5)}),
      causal);
  const Side short_q{.owned = {64, 1, 0, 33, 50, 7}, .used = {64, 1, 0, 20, 0, 7}, .spare = 5};
  const Side short_k{.owned = {17, 64, 3, 0, 40, 64}, .used = {17, 60, 0, 0, 40, 64}, .spare = 70};
  add(ragged_case(" packed-short", 2, 2, short_q, short_k), nothing);
  add(ragged_case(" packed-short", 6, 2, short_q, short_k),
      [](BackwardCase& c) { c.causal = c.d_lse = true, c.head_dim_less = 8; });
  add(ragged_case(" packed-short", 2, 1, short_q, short_k), window(20, 5));
  add(ragged_case(" packed-short", 2, 1, short_q, short_k), beside(20, 5, -20));
  add(ragged_case(" packed-short", 2, 1, short_q, short_k), beside(3, 30, 8));
  // Several query heads in a tile: four of up to 16 rows, two of up to 32, all eight of one.
  const Side few_q{.owned = {16, 1, 0, 30, 12, 7}, .used = {16, 1, 0, 4, 0, 7}, .spare = 5};
  const auto at_most = [](int rows, auto change) {
    return [=](BackwardCase& c) { c.seqlen_q = rows, change(c); };
  };
  add(ragged_case(" packed-used-few", 8, 2, few_q, short_k),
      at_most(16, [](BackwardCase& c) { c.causal = c.d_lse = true, c.head_dim_less = 8; }));
  add(ragged_case(" packed-few", 8, 2, {.owned = {32, 31, 0, 3, 17, 1}}, short_k), window(20, 5));
  add(ragged_case(" packed-few", 8, 1, {.owned = {1, 1, 1, 0, 1, 1}}, short_k), causal);
  add(ragged_case(" packed-unused", 2, 1, {.owned = {100, 9, 70}, .used = {64, 9, 5}},
                  {.owned = {64, 90, 130}, .used = {60, 0, 64}}),
      [](BackwardCase& c) { c.seqlen_q = c.seqlen_k = 64; });  // of used rows
  add(ragged_case(" short-used", 2, 2,
                  {.owned = {60, 60, 60}, .used = {60, 0, 33}, .packed = false},
                  {.owned = {50, 50, 50}, .used = {1, 50, 44}, .packed = false}),
      causal);
  add(ragged_case(" packed-queries", 2, 2, {.owned = {100, 1, 0, 65}},
                  {.owned = {300, 300, 300, 300}, .used = {300, 0, 77, 128}, .packed = false}),
      nothing);
  add(ragged_case(" packed-keys", 2, 2,
                  {.owned = {200, 200, 200, 200}, .used = {200, 0, 77, 128}, .packed = false},
                  {.owned = {100, 1, 0, 450}}),
      causal);
  add(ragged_case(" used", 2, 2,
                  {.owned = {300, 300, 300, 300}, .used = {0, 300, 64, 65}, .packed = false},
                  {.owned = {500, 500, 500, 500}, .used = {400, 500, 0, 128}, .packed = false}),
      causal);
  return all;
}

inline std::vector<BackwardCase> cases() {
  std::vector<BackwardCase> all{
      {1, 1, 1, 64, 128},  // one step, one CTA: a hang shows here
      {1, 1, 1, 1, 1},
      {1, 1, 1, 128, 128},
      {1, 1, 1, 512, 128},
      {1, 1, 1, 64, 256},
      {1, 1, 1, 64, 128, true},
      {1, 2, 2, 512, 512},
      {1, 2, 2, 512, 512, true},
      {2, 3, 3, 300, 400},
      {2, 3, 3, 300, 400, true},
      {2, 3, 3, 400, 300, true},  // rows without keys
      {1, 4, 2, 192, 256},
      {1, 4, 1, 200, 333, true},
      {1, 8, 1, 65, 129, true},
      {1, 7, 1, 300, 200, true},
      {2, 6, 2, 333, 500, true, 16},
      {2, 16, 2, 300, 400, true},
      {6, 640, 80, 8, 60, true},  // several heads a split
      {1, 17, 1, 150, 150, true},
      {2, 2, 2, 257, 129, false, 8},
      {2, 2, 2, 129, 257, true, 24},
      {1, 2, 2, 500, 500, true, 0, 8.0f},
      {1, 2, 1, 256, 384, false, 0, 1.0f, true},
      {1, 2, 2, 1024, 1024, true},
      {1, 2, 2, 1024, 1024},
      {3, 20, 20, 128, 128, true},  // more tiles than SMs, with
      {3, 60, 60, 100, 130, true},
  };
  for (const bool causal : {false, true}) {
    all.push_back({1, 1, 1, 200, 300, causal, 0, 1.0f, false, true});
    all.push_back({2, 4, 2, 700, 900, causal, 0, 1.0f, false, true});
    all.push_back({2, 10, 10, 1000, 2100, causal, 0, 1.0f, false, true});  // several waves
  }
  for (int s = 2; s <= 200; s += s < 10 ? 1 : s < 60 ? 7 : 13) {
    all.push_back({1, 2, 1, s, 201 - s});
    all.push_back({1, 1, 1, s, 150, true});
    all.push_back({1, 1, 1, 150, s, true});
  }
  // A last wave of few key blocks, of every kernel.
  all.push_back({2, 6, 3, 1500, 600});
  all.back().sms = 9;
  all.push_back({2, 4, 2, 1500, 1000});
  all.back().sms = 6;
  // Few key blocks in all.
  all.push_back({1, 1, 1, 2100, 1900});
  all.push_back({1, 2, 2, 2100, 1900, true});
  for (const BackwardCase& c : masked_cases()) all.push_back(c);
  return all;
}

// What sequence `b` of a case has of one side's tensor.
struct SideLayout {
  std::vector<int> cu;
  std::vector<int64_t> begin;
  std::vector<int> used;
  int batches;
  int rows;

  SideLayout(const BackwardCase& c, const Side& side, int seqlen)
      : batches(c.batches), rows(seqlen) {
    const bool packed = c.varlen && side.packed;
    cu.push_back(0);
    for (int b = 0; b < c.batches; ++b) {
      const int owned = c.varlen ? side.owned[b] : seqlen;
      begin.push_back(packed ? cu[b] : int64_t{b} * seqlen);
      used.push_back(side.used.empty() ? owned : side.used[b]);
      cu.push_back(cu[b] + owned);
    }
    if (packed) batches = 1, rows = cu.back() + side.spare;
  }
  size_t all_rows() const { return size_t(batches) * rows; }
  bool uses(size_t row) const {
    for (size_t b = 0; b < begin.size(); ++b) {
      if (row >= size_t(begin[b]) && row < size_t(begin[b] + used[b])) return true;
    }
    return false;
  }
  // NaN where no sequence uses the row, which has `count` elements.
  template <typename T>
  std::vector<T> poisoned(std::vector<T> values, size_t count) const {
    for (size_t row = 0; row < all_rows(); ++row) {
      if (!uses(row)) std::fill_n(values.begin() + row * count, count, T(NAN));
    }
    return values;
  }
};

}  // namespace fa3::testing
