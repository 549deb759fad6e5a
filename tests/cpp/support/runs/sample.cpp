// SPDX-License-Identifier: Apache-2.0
#include "support/runs/sample.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
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
constexpr int64_t kSame = 0, kDouble = -1;
constexpr int64_t kDimsOfV[] = {kSame, kDouble, 64, 128, 5, 104, 1, 48};  // 256, 512: as a double
constexpr std::pair<int64_t, int64_t> kHeads[] = {{6, 6}, {6, 2}, {6, 1}};
constexpr fa3_dtype kDtypes[] = {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16};

// Window sides relative to the sequence.
enum class Mask {
  none,
  causal,
  self,
  left,
  right,
  both,
  wide,
  causal_left,
  chunk,
  causal_chunk,
  before,
  behind
};
constexpr Mask kMasks[] = {Mask::none,  Mask::causal,       Mask::self,   Mask::left,
                           Mask::right, Mask::both,         Mask::wide,   Mask::causal_left,
                           Mask::chunk, Mask::causal_chunk, Mask::before, Mask::behind};

void set_mask(Mask mask, int64_t seqlen_k, Random* random, Case* c) {
  const int64_t side = random->below(std::max<int64_t>(seqlen_k, 1));
  c->causal = mask == Mask::causal || mask == Mask::causal_left || mask == Mask::causal_chunk;
  if (mask == Mask::self) c->left = c->right = 0;
  if (mask == Mask::left || mask == Mask::causal_left) c->left = side;
  if (mask == Mask::right) c->right = side;
  if (mask == Mask::both) {
    c->left = side;
    c->right = random->below(std::max<int64_t>(seqlen_k, 1));
  }
  if (mask == Mask::before) c->right = 0, c->shift = -1 - int32_t(side);
  if (mask == Mask::behind) c->left = c->right = side, c->shift = 1 + int32_t(side * 3 / 2);
  if (mask == Mask::wide) c->left = c->right = 100000;
  if (mask == Mask::chunk || mask == Mask::causal_chunk) c->chunk = 1 + 2 * side;
}

// The factors besides the lengths. A row of all_pairs has an index for each.
enum Factor {
  kDim,
  kDimV,
  kHeadCounts,
  kDtype,
  kFloat32Output,
  kMask,
  kSoftcap,
  kSink,
  kIn,
  kOut,
  kScale,
  kFactors
};
using Row = std::vector<int>;
const Row& factor_sizes() {
  static const Row sizes = {static_cast<int>(std::size(kDims)),
                            static_cast<int>(std::size(kDimsOfV)),
                            static_cast<int>(std::size(kHeads)),
                            static_cast<int>(std::size(kDtypes)),
                            2,
                            static_cast<int>(std::size(kMasks)),
                            2,
                            2,
                            static_cast<int>(std::size(kLayouts)),
                            static_cast<int>(std::size(kLayouts)),
                            2};
  return sizes;
}

// What every engine does: d64, bf16 and the first value of every other factor.
Row plain_row() {
  Row row(kFactors, 0);
  row[kDim] = 6;
  row[kDtype] = 2;
  return row;
}

Case features(const Row& row, Lengths2 lengths, uint64_t seed) {
  Random random(seed);
  Case c;
  c.seed = seed;
  const auto pick = [&](Factor factor) { return static_cast<size_t>(row[factor]); };
  c.q.rows = lengths.q;
  c.k.rows = lengths.k;
  c.dim = kDims[pick(kDim)];
  const int64_t dim_v = kDimsOfV[pick(kDimV)];
  c.dim_v = dim_v == kSame ? c.dim : dim_v == kDouble ? std::min<int64_t>(2 * c.dim, 512) : dim_v;
  std::tie(c.heads_q, c.heads_k) = kHeads[pick(kHeadCounts)];
  c.dtype = kDtypes[pick(kDtype)];
  c.o_float32 = pick(kFloat32Output) == 1;
  set_mask(kMasks[pick(kMask)], lengths.k, &random, &c);
  c.softcap = pick(kSoftcap) == 1 ? 15.0f : 0.0f;
  c.sink = pick(kSink) == 1;
  c.in = kLayouts[pick(kIn)];
  c.out = kLayouts[pick(kOut)];
  c.scale = pick(kScale) == 1 ? 0.07f : FA3_SCALE_AUTO;
  c.num_threads = static_cast<int>(random.between(1, 3));
  c.d_lse = random.below(2) == 1;
  return c;
}

// For every factor the values that the engine can do when all else is plain.
std::vector<Row> usable_values(const EngineUnderTest& engine, Pass pass) {
  std::vector<Row> usable(kFactors);
  for (size_t factor = 0; factor < kFactors; ++factor) {
    for (int value = 0; value < factor_sizes()[factor]; ++value) {
      Row row = plain_row();
      row[factor] = value;
      const std::string reason = refusal(engine, features(row, {64, 65}, 1), pass);
      reason.empty() ? usable[factor].push_back(value) : leave_out(reason);
    }
  }
  return usable;
}

// All pairs of usable values; none if there is a factor that the engine can do in no way.
std::vector<Row> usable_rows(const EngineUnderTest& engine, Pass pass, uint64_t seed) {
  const std::vector<Row> usable = usable_values(engine, pass);
  Row sizes;
  for (const Row& values : usable) sizes.push_back(static_cast<int>(values.size()));
  if (std::count(sizes.begin(), sizes.end(), 0) > 0) return {};
  std::vector<Row> rows = all_pairs(sizes, seed);
  for (Row& row : rows) {
    for (size_t factor = 0; factor < kFactors; ++factor) {
      row[factor] = usable[factor][static_cast<size_t>(row[factor])];
    }
  }
  return rows;
}

bool does_packed(const EngineUnderTest& engine, Pass pass) {
  Case c = features(plain_row(), {0, 0}, 1);
  c.q = {.owned = {64}};
  c.k = {.owned = {65}};
  const std::string reason = refusal(engine, c, pass);
  if (!reason.empty()) leave_out(reason);
  return reason.empty();
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

std::vector<Row> all_pairs(const Row& sizes, uint64_t seed) {
  using Pair = std::pair<std::pair<size_t, int>, std::pair<size_t, int>>;
  std::set<Pair> open;
  const size_t factors = sizes.size();
  for (size_t a = 0; a < factors; ++a) {
    for (size_t b = a + 1; b < factors; ++b) {
      for (int i = 0; i < sizes[a]; ++i) {
        for (int j = 0; j < sizes[b]; ++j) open.insert({{a, i}, {b, j}});
      }
    }
  }
  const auto pairs_of = [&](const Row& row) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < factors; ++a) {
      for (size_t b = a + 1; b < factors; ++b) pairs.push_back({{a, row[a]}, {b, row[b]}});
    }
    return pairs;
  };
  Random random(seed);
  std::vector<Row> rows;
  while (!open.empty()) {
    Row best;
    int64_t best_gain = -1;
    for (int attempt = 0; attempt < 40; ++attempt) {
      Row row(factors);
      for (size_t f = 0; f < factors; ++f) row[f] = static_cast<int>(random.below(sizes[f]));
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

std::vector<Case> dense_matrix(const EngineUnderTest& engine, Pass pass,
                               const MatrixLimits& limits) {
  const std::vector<Lengths2> lengths = lengths_within(limits.largest_scores);
  std::vector<Case> cases;
  for (int round = 0; round < limits.rounds; ++round) {
    for (const Row& row : usable_rows(engine, pass, static_cast<uint64_t>(round))) {
      const size_t i = cases.size();
      Case c = features(row, lengths[i % lengths.size()], 1000 + i);
      c.batch = 2;
      make_affordable(limits.most_work, 1, &c);
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<Case> packed_matrix(const EngineUnderTest& engine, Pass pass,
                                const MatrixLimits& limits) {
  std::vector<Case> cases;
  if (!does_packed(engine, pass)) return cases;
  const std::vector<Lengths2> lengths = lengths_within(limits.largest_scores);
  for (int round = 0; round < limits.rounds; ++round) {
    for (const Row& row : usable_rows(engine, pass, 100 + static_cast<uint64_t>(round))) {
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
  Case decode_sink = decode;
  decode_sink.sink = true;
  std::vector<Case> cases = {square, window, decode, decode_sink};
  for (Case& c : cases) c.seed = 9000 + static_cast<uint64_t>(&c - cases.data());
  return cases;
}

Case random_case(const EngineUnderTest& engine, uint64_t seed) {
  static std::map<std::string, std::pair<std::vector<Row>, bool>> known;
  auto [found, first] = known.try_emplace(engine.name);
  auto& [usable, packed] = found->second;
  if (first) usable = usable_values(engine, Pass::forward);
  if (first) packed = does_packed(engine, Pass::forward);
  Random random(seed);
  Row row;
  for (const Row& values : usable) {
    row.push_back(values[static_cast<size_t>(random.below(std::ssize(values)))]);
  }
  const int64_t longest = random.one_in(4) ? 300 : 80;
  Case c = features(row, {random.between(0, longest), random.between(0, longest)}, seed);
  c.batch = random.between(1, 3);
  const int64_t step = usable[kDim].front() == 0 ? 1 : 8;  // 0: a head dim of 1
  if (random.one_in(2)) c.dim = step * random.between(1, 96 / step);
  if (random.one_in(2)) c.dim_v = step * random.between(1, 96 / step);
  c.heads_k = random.between(1, 3);
  c.heads_q = c.heads_k * random.between(1, 5);
  if (random.one_in(2) && packed) make_packed(&random, &c);
  return c;
}

}  // namespace fa3::test
