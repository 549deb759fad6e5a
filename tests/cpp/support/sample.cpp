// SPDX-License-Identifier: Apache-2.0
#include "support/sample.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "support/random.h"

namespace fa3::test {
namespace {

struct Lengths2 {
  int64_t q, k;
};

// The 20 dense and 22 packed shapes of FlashAttention-3's tests, then lengths around tile edges,
// primes, zero, and more queries than keys.
constexpr Lengths2 kLengths[] = {
    {1, 1},     {64, 128},    {128, 192},   {256, 256},   {239, 1},    {799, 3},   {113, 203},
    {113, 128}, {128, 217},   {113, 211},   {108, 256},   {256, 512},  {384, 256}, {640, 128},
    {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {1, 3},      {2, 1},     {511, 1},
    {3, 513},   {307, 256},   {2048, 2048}, {64, 64},     {128, 128},  {203, 239}, {0, 17},
    {17, 0},    {0, 0},       {17, 17},     {63, 65},     {65, 63},    {127, 129}, {129, 127},
    {1, 127},   {1, 1024},    {1, 4097},    {7, 799},     {799, 799},  {16, 2048}, {2, 65},
    {33, 47},   {95, 97},     {191, 193},   {4096, 4096}, {4224, 4224}};
constexpr int64_t kDims[] = {1,  7,   8,   17,  32,  40,  64,  72, 80,
                             96, 128, 136, 160, 192, 224, 256, 512};
constexpr int64_t kOtherDims[] = {64, 128, 5, 104, 256, 1, 48, 512};
constexpr std::pair<int64_t, int64_t> kHeads[] = {{6, 6}, {6, 2}, {6, 1}};
constexpr fa3_dtype kDtypes[] = {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16};

// Window sides relative to the sequence.
enum class Mask { none, causal, self, left, right, both, wide, causal_left };
constexpr Mask kMasks[] = {Mask::none,  Mask::causal, Mask::self, Mask::left,
                           Mask::right, Mask::both,   Mask::wide, Mask::causal_left};

void set_mask(Mask mask, int64_t seqlen_k, Random* random, Case* c) {
  const int64_t side = random->below(std::max<int64_t>(seqlen_k, 1));
  c->causal = mask == Mask::causal || mask == Mask::causal_left;
  if (mask == Mask::self) c->left = c->right = 0;
  if (mask == Mask::left || mask == Mask::causal_left) c->left = side;
  if (mask == Mask::right) c->right = side;
  if (mask == Mask::both) {
    c->left = side;
    c->right = random->below(std::max<int64_t>(seqlen_k, 1));
  }
  if (mask == Mask::wide) c->left = c->right = 100000;
}

// The factors besides the lengths, in the order in which a row of all_pairs gives them.
const std::vector<int>& feature_sizes() {
  static const std::vector<int> sizes = {
      static_cast<int>(std::size(kDims)),     // 0 head dim
      4,                                      // 1 dv: the same, or another one (twice), or larger
      static_cast<int>(std::size(kHeads)),    // 2 heads
      static_cast<int>(std::size(kDtypes)),   // 3 dtype
      2,                                      // 4 o in float32
      static_cast<int>(std::size(kMasks)),    // 5 mask
      2,                                      // 6 softcap
      2,                                      // 7 sink
      static_cast<int>(std::size(kLayouts)),  // 8 layout of inputs
      static_cast<int>(std::size(kLayouts)),  // 9 layout of outputs
      2,                                      // 10 scale
  };
  return sizes;
}

Case features(const std::vector<int>& row, Lengths2 lengths, uint64_t seed) {
  Random random(seed);
  Case c;
  c.seed = seed;
  const auto pick = [&](int factor) {
    return static_cast<size_t>(row[static_cast<size_t>(factor)]);
  };
  c.q.rows = lengths.q;
  c.k.rows = lengths.k;
  c.dim = kDims[pick(0)];
  const auto other = static_cast<size_t>(random.below(std::ssize(kOtherDims)));
  c.dim_v = pick(1) < 2    ? c.dim
            : pick(1) == 2 ? kOtherDims[other]
                           : std::min<int64_t>(2 * c.dim, 512);
  std::tie(c.heads_q, c.heads_k) = kHeads[pick(2)];
  c.dtype = kDtypes[pick(3)];
  c.o_float32 = pick(4) == 1;
  set_mask(kMasks[pick(5)], lengths.k, &random, &c);
  c.softcap = pick(6) == 1 ? 15.0f : 0.0f;
  c.sink = pick(7) == 1;
  c.in = kLayouts[pick(8)];
  c.out = kLayouts[pick(9)];
  c.scale = pick(10) == 1 ? 0.07f : FA3_SCALE_AUTO;
  c.num_threads = static_cast<int>(random.between(1, 3));
  c.d_lse = random.below(2) == 1;
  return c;
}

// What a case costs: multiplications in the score and value products, and passes over memory.
int64_t work_of(const Case& c) {
  const int64_t passes = 16 * (c.q.rows + c.k.rows);
  return c.batch * c.heads_q * (c.q.rows * c.k.rows + passes) * (c.dim + c.dim_v);
}

// Keeps the lengths and gives up what multiplies the time, the least interesting factor first.
void make_affordable(int64_t most_work, int64_t least_batch, Case* c) {
  const bool group = c->heads_q > c->heads_k;
  if (work_of(*c) > most_work) c->batch = least_batch;
  if (work_of(*c) > most_work) {
    c->heads_k = group ? 1 : 2;
    c->heads_q = group ? 3 : 2;
  }
  if (work_of(*c) > most_work) c->heads_q = group ? 2 : c->heads_k = 1;
  for (int64_t dim = 128; dim >= 32 && work_of(*c) > most_work; dim /= 2) {
    c->dim = std::min(c->dim, dim);
    c->dim_v = std::min(c->dim_v, dim);
  }
}

std::vector<Lengths2> lengths_within(int64_t largest_scores) {
  std::vector<Lengths2> kept;
  std::copy_if(std::begin(kLengths), std::end(kLengths), std::back_inserter(kept),
               [&](Lengths2 l) { return l.q * l.k <= largest_scores; });
  return kept;
}

// FlashAttention-3's packed tests: lengths near the largest, every fifth and the last key length 0;
// here query lengths may be 0 too, and some sequences use fewer rows than they own.
void make_packed(Random* random, Case* c) {
  for (Side* side : {&c->q, &c->k}) {
    const int64_t longest = side->rows;
    if (random->one_in(4)) {  // this side stays dense, with lengths of its own
      for (int64_t b = 0; b < c->batch; ++b) {
        side->used.push_back(static_cast<int32_t>(random->between(0, longest)));
      }
      continue;
    }
    const bool padded = random->one_in(2);
    for (int64_t b = 0; b < c->batch; ++b) {
      const bool zero = side == &c->k ? b % 5 == 4 || b == c->batch - 1 : b == 1;
      const int64_t owned = zero ? 0 : random->between(std::max<int64_t>(longest - 20, 0), longest);
      side->owned.push_back(static_cast<int32_t>(owned));
      if (padded) side->used.push_back(static_cast<int32_t>(random->between(owned / 2, owned)));
    }
    side->spare_rows = random->below(4);
  }
}

}  // namespace

std::vector<std::vector<int>> all_pairs(const std::vector<int>& factor_sizes, uint64_t seed) {
  using Pair = std::pair<std::pair<size_t, int>, std::pair<size_t, int>>;
  std::set<Pair> open;
  const size_t factors = factor_sizes.size();
  for (size_t a = 0; a < factors; ++a) {
    for (size_t b = a + 1; b < factors; ++b) {
      for (int i = 0; i < factor_sizes[a]; ++i) {
        for (int j = 0; j < factor_sizes[b]; ++j) open.insert({{a, i}, {b, j}});
      }
    }
  }
  const auto pairs_of = [&](const std::vector<int>& row) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < factors; ++a) {
      for (size_t b = a + 1; b < factors; ++b) pairs.push_back({{a, row[a]}, {b, row[b]}});
    }
    return pairs;
  };
  Random random(seed);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> best;
    int64_t best_gain = -1;
    for (int attempt = 0; attempt < 40; ++attempt) {
      std::vector<int> row(factors);
      for (size_t f = 0; f < factors; ++f) row[f] = static_cast<int>(random.below(factor_sizes[f]));
      const auto& [a, b] = *open.begin();  // so that every row covers something new
      row[a.first] = a.second;
      row[b.first] = b.second;
      int64_t gain = 0;
      for (const Pair& pair : pairs_of(row)) gain += static_cast<int64_t>(open.count(pair));
      if (gain > best_gain) {
        best_gain = gain;
        best = std::move(row);
      }
    }
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    rows.push_back(std::move(best));
  }
  return rows;
}

std::vector<Case> dense_matrix(const MatrixLimits& limits) {
  const std::vector<Lengths2> lengths = lengths_within(limits.largest_scores);
  std::vector<Case> cases;
  for (int round = 0; round < limits.rounds; ++round) {
    for (const std::vector<int>& row : all_pairs(feature_sizes(), static_cast<uint64_t>(round))) {
      const size_t i = cases.size();
      Case c = features(row, lengths[i % lengths.size()], 1000 + i);
      c.batch = 2;
      make_affordable(limits.most_work, 1, &c);
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<Case> packed_matrix(const MatrixLimits& limits) {
  const std::vector<Lengths2> lengths = lengths_within(limits.largest_scores);
  std::vector<Case> cases;
  for (int round = 0; round < limits.rounds; ++round) {
    for (const std::vector<int>& row :
         all_pairs(feature_sizes(), 100 + static_cast<uint64_t>(round))) {
      const size_t i = cases.size();
      Random random(5000 + i);
      Case c = features(row, lengths[i % lengths.size()], 5000 + i);
      c.batch = 7;
      make_affordable(limits.most_work, 4, &c);
      make_packed(&random, &c);
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<Case> long_cases() {
  Case square = dense_case(1, 4224, 4224, 1, 1, 64, 64, FA3_BFLOAT16);
  square.causal = true;
  Case window = dense_case(1, 4096, 4099, 1, 1, 32, 32, FA3_FLOAT32);
  window.left = 700;
  window.right = 33;
  Case decode = dense_case(2, 1, 20001, 4, 2, 128, 128, FA3_FLOAT16);
  decode.sink = true;
  std::vector<Case> cases = {square, window, decode};
  for (Case& c : cases) c.seed = 9000 + static_cast<uint64_t>(&c - cases.data());
  return cases;
}

Case random_case(uint64_t seed) {
  Random random(seed);
  std::vector<int> row;
  for (int size : feature_sizes()) row.push_back(static_cast<int>(random.below(size)));
  const int64_t longest = random.one_in(4) ? 300 : 80;
  Case c = features(row, {random.between(0, longest), random.between(0, longest)}, seed);
  c.batch = random.between(1, 3);
  c.dim = random.one_in(2) ? random.between(1, 96) : c.dim;
  c.dim_v = random.one_in(2) ? random.between(1, 96) : c.dim_v;
  c.heads_k = random.between(1, 3);
  c.heads_q = c.heads_k * random.between(1, 5);
  if (random.one_in(2)) make_packed(&random, &c);
  return c;
}

}  // namespace fa3::test
