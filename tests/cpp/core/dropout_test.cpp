// SPDX-License-Identifier: Apache-2.0
//
// philox.h against the test vectors of its paper's authors; dropout.h: where a draw comes from, and
// the statistics of masks. Seeds are fixed: a bound of 5 standard deviations holds or does not.
#include "core/dropout/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>
#include <vector>

namespace fa3::test {
namespace {

// kat_vectors of Random123, the library of Salmon et al.
struct Known {
  PhiloxWords counter;
  PhiloxKey key;
  PhiloxWords after7, after10;
};

constexpr Known kKnown[] = {
    {{{0, 0, 0, 0}},
     {{0, 0}},
     {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
     {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {{0xffffffff, 0xffffffff}},
     {{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {{0xa4093822, 0x299f31d0}},
     {{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

void expect_same(const PhiloxWords& got, const PhiloxWords& expected) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], expected.word[i]) << "word " << i;
}

TEST(Philox, GivesTheKnownAnswers) {
  for (const Known& known : kKnown) {
    expect_same(philox<7>(known.counter, known.key), known.after7);
    expect_same(philox<10>(known.counter, known.key), known.after10);
  }
}

TEST(Dropout, TheCallsKeyIsOneCallOfTheGenerator) {
  const PhiloxWords words =
      philox<10>({{0x9abcdef0, 0x12345678, 0, 0}}, {{0x01234567, 0x89abcdef}});
  const PhiloxKey key = dropout_call_key(0x89abcdef01234567u, 0x123456789abcdef0u);
  EXPECT_EQ(key.word[0], words.word[0]);
  EXPECT_EQ(key.word[1], words.word[1]);
}

TEST(Dropout, RoundsMadeApartAreThoseOfTheGenerator) {
  const PhiloxKey key = dropout_call_key(17, 4);
  for (int64_t sequence : {0, 3}) {
    for (int64_t head : {0, 1, 127}) {
      const DropoutHead parts = dropout_head(key, sequence, head);
      for (uint32_t query : {0u, 7u, 8u, 4096u, ~0u}) {
        for (uint32_t k : {0u, 3u, 4u, 70000u, ~0u}) {
          const PhiloxWords whole = philox<7>(
              {{static_cast<uint32_t>(head), k, static_cast<uint32_t>(sequence), query}}, key);
          expect_same(dropout_words(dropout_query(parts, query), dropout_key(parts, k), key),
                      whole);
        }
      }
    }
  }
}

// Rows g and g + 8, columns 2t and 2t + 1 of each 8.
TEST(Dropout, OneCallHasWhatAThreadHoldsOfTheAccumulators) {
  std::set<std::tuple<uint32_t, uint32_t, int, int>> all;
  for (int64_t g = 0; g < 8; ++g) {
    for (int64_t t = 0; t < 4; ++t) {
      std::set<std::tuple<uint32_t, uint32_t>> calls;
      for (int64_t row : {g, g + 8}) {
        for (int64_t eight = 0; eight < 8; ++eight) {
          for (int64_t column : {2 * t, 2 * t + 1}) {
            const int64_t query = 48 + row, key = 192 + 8 * eight + column;
            const uint32_t q_word = dropout_query_word(query), k_word = dropout_key_word(key);
            calls.emplace(q_word, k_word);
            all.emplace(q_word, k_word, dropout_word_of(query, key), dropout_half_of(key));
          }
        }
      }
      EXPECT_EQ(calls.size(), 1u);
    }
  }
  EXPECT_EQ(all.size(), 1024u) << "a draw belongs to one query and one key";
}

// Factors of each word, of the four that Philox leaves.
struct Factors {
  uint32_t of[kPhiloxWords] = {};
};

std::vector<Factors> factors_of_words() {
  std::vector<Factors> words(kDropoutWords);
  for (int i = 0; i < kPhiloxWords; ++i) words[i].of[i] = 1;
  for (int i = kPhiloxWords; i < kDropoutWords; ++i) {
    const DropoutSum sum = kDropoutSums[i - kPhiloxWords];
    for (int j = 0; j < kPhiloxWords; ++j) {
      words[i].of[j] = sum.factor * words[sum.times].of[j] + words[sum.plus].of[j];
    }
  }
  return words;
}

// Two words are independent where two of the four can be computed from them: a determinant is odd.
TEST(Dropout, AnyTwoWordsOfACallAreIndependent) {
  const std::vector<Factors> words = factors_of_words();
  for (int a = 0; a < kDropoutWords; ++a) {
    for (int b = a + 1; b < kDropoutWords; ++b) {
      bool odd = false;
      for (int i = 0; i < kPhiloxWords; ++i) {
        for (int j = 0; j < i; ++j) {
          odd |= (words[a].of[i] * words[b].of[j] - words[a].of[j] * words[b].of[i]) % 2 != 0;
        }
      }
      EXPECT_TRUE(odd || (a == 0 && b == kDropoutWords - 1)) << a << ", " << b;
    }
  }
}

// The first word and the last share their lowest bit, and nothing else.
TEST(Dropout, TheLastWordIsIndependentButForItsLowestBit) {
  const Factors last = factors_of_words()[kDropoutWords - 1];
  EXPECT_EQ(last.of[0], 1u);
  EXPECT_EQ(last.of[2] % 4, 2u);
}

// No draw depends on the bit that chooses a call's limit.
TEST(Dropout, TheHighestBitOfACallsFirstWordIsInNoDraw) {
  for (uint32_t x : {0u, 1u, 0x7fffffffu, 0x12345678u}) {
    const DropoutDraws low = dropout_draws({{x, 3, 5, 7}});
    const DropoutDraws high = dropout_draws({{x | 0x80000000u, 3, 5, 7}});
    for (int64_t query : {0, 8}) {
      for (int64_t key = 0; key < kDropoutKeys; ++key) {
        EXPECT_EQ(low.draw(query, key), high.draw(query, key));
      }
    }
  }
}

// Counts, among all 2^16 threes of draws below 2^15 that a sum ties, those below a limit: as many
// as of independent draws. Exact: the lower draws of words x, y and factor x + y.
TEST(Dropout, ThreeTiedDrawsMeetAsIndependentOnesDo) {
  constexpr int64_t kAll = 1 << 15;
  for (const DropoutSum& sum : kDropoutSums) {
    for (int64_t limit : {33, 1638, 3277, 8192, 16384}) {
      int64_t met = 0;
      for (int64_t x = 0; x < limit; ++x) {
        // y in [0, limit) with (at + y) mod 2^15 in [0, limit).
        const int64_t at = static_cast<int64_t>(sum.factor) * x % kAll;
        if (at < limit) met += limit - at;
        if (at > kAll - limit) met += at + limit - kAll;
      }
      const double share = static_cast<double>(met) / (kAll * kAll);
      const double p = static_cast<double>(limit) / kAll;
      EXPECT_NEAR(share, p * p * p, 2 * p / kAll) << sum.factor << ", " << limit;
    }
  }
}

TEST(Dropout, TheThresholdIsTheNearestOf65536) {
  const auto scale = [](float p) { return Dropout{.threshold = dropout_threshold(p)}.scale(); };
  EXPECT_EQ(dropout_threshold(0.0f), 0u);
  EXPECT_EQ(dropout_threshold(1e-9f), 1u);
  EXPECT_EQ(dropout_threshold(0.1f), 6554u);
  EXPECT_EQ(dropout_threshold(0.5f), 32768u);
  EXPECT_EQ(dropout_threshold(0x1.fffffep-1f), 65535u);
  EXPECT_EQ(dropout_threshold(1.0f), 65536u);
  EXPECT_EQ(scale(0.0f), 1.0);
  EXPECT_EQ(scale(0.5f), 2.0);
  EXPECT_EQ(scale(0.1f), 65536.0 / (65536 - 6554));
  EXPECT_EQ(scale(1.0f), 0.0);
}

// A mask of kRows x kRows, as 1 - p where kept and -p where not.
constexpr int64_t kRows = 768;
constexpr float kP = 0.1f;
const Dropout kDropout = {.threshold = dropout_threshold(kP)};
constexpr double kRealised = 6554.0 / 65536;
constexpr double kVariance = kRealised * (1 - kRealised);

struct Place {
  uint64_t seed = 1, offset = 0;
  int64_t sequence = 0, head = 0;
};

std::vector<double> deviations(const Place& place) {
  std::vector<double> mask;
  const DropoutHead head =
      dropout_head(dropout_call_key(place.seed, place.offset), place.sequence, place.head);
  for (int64_t query = 0; query < kRows; ++query) {
    DropoutRow row(kDropout, head, query);
    for (int64_t key = 0; key < kRows; ++key) {
      mask.push_back((row.keeps(key) ? 1.0 : 0.0) - (1 - kRealised));
    }
  }
  return mask;
}

const std::vector<double>& first_mask() {
  static const std::vector<double> mask = deviations({});
  return mask;
}

// In standard deviations of as many independent pairs.
double correlation(const std::vector<double>& a, const std::vector<double>& b, int64_t rows,
                   int64_t columns) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t q = 0; q + rows < kRows; ++q) {
    for (int64_t k = 0; k + columns < kRows; ++k, ++count) {
      sum += a[q * kRows + k] * b[(q + rows) * kRows + k + columns];
    }
  }
  return sum / (kVariance * std::sqrt(static_cast<double>(count)));
}

TEST(DropoutStatistics, MasksHaveTheirMean) {
  double sum = 0;
  constexpr int kMasks = 8;
  for (uint64_t seed = 0; seed < kMasks; ++seed) {
    for (double x : deviations({.seed = seed})) sum += x;
  }
  EXPECT_LT(std::abs(sum) / std::sqrt(kVariance * kMasks * kRows * kRows), 5);
}

TEST(DropoutStatistics, RowsAndColumnsAreUncorrelated) {
  for (int64_t lag : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32, 64, 128, 256}) {
    EXPECT_LT(std::abs(correlation(first_mask(), first_mask(), lag, 0)), 5) << lag << " rows";
    EXPECT_LT(std::abs(correlation(first_mask(), first_mask(), 0, lag)), 5) << lag << " columns";
    EXPECT_LT(std::abs(correlation(first_mask(), first_mask(), lag, lag)), 5) << lag << " of both";
  }
}

TEST(DropoutStatistics, HeadsSequencesSeedsAndOffsetsAreUncorrelated) {
  for (const Place& other :
       {Place{.head = 1}, Place{.head = 2}, Place{.head = 16}, Place{.sequence = 1},
        Place{.sequence = 1, .head = 1}, Place{.seed = 2}, Place{.seed = 3},
        Place{.seed = 1 + (uint64_t{1} << 32)}, Place{.offset = 1}, Place{.offset = 4},
        Place{.offset = uint64_t{1} << 32}}) {
    EXPECT_LT(std::abs(correlation(first_mask(), deviations(other), 0, 0)), 5)
        << "seed " << other.seed << " offset " << other.offset << " head " << other.head;
  }
}

// The sum of squared deviations of blocks, whose mean is their number and variance twice that.
double blocks_chi_square(const std::vector<double>& mask, int64_t rows, int64_t columns) {
  double chi_square = 0;
  int64_t blocks = 0;
  for (int64_t q = 0; q + rows <= kRows; q += rows) {
    for (int64_t k = 0; k + columns <= kRows; k += columns, ++blocks) {
      double sum = 0;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) sum += mask[(q + i) * kRows + k + j];
      }
      chi_square += sum * sum / (kVariance * static_cast<double>(rows * columns));
    }
  }
  const auto expected = static_cast<double>(blocks);
  return (chi_square - expected) / std::sqrt(2 * expected);
}

TEST(DropoutStatistics, BlocksSpreadAsIndependentDrawsDo) {
  EXPECT_LT(std::abs(blocks_chi_square(first_mask(), 16, 16)), 5);
  EXPECT_LT(std::abs(blocks_chi_square(first_mask(), 8, 8)), 5);
  EXPECT_LT(std::abs(blocks_chi_square(first_mask(), 1, kRows)), 5) << "rows";
  EXPECT_LT(std::abs(blocks_chi_square(first_mask(), kRows, 1)), 5) << "columns";
  EXPECT_LT(std::abs(blocks_chi_square(first_mask(), 64, 128)), 5) << "tiles";
}

// How often two draws of a call, or three in a row, are all below a limit.
TEST(DropoutStatistics, DrawsOfOneCallMeetAsIndependentOnesDo) {
  constexpr int kDraws = 2 * kDropoutWords, kCalls = 1 << 16;
  const DropoutHead head = dropout_head(dropout_call_key(11, 0), 0, 0);
  for (float p : {0.01f, 0.1f, 0.5f}) {
    const Dropout dropout{.threshold = dropout_threshold(p)};
    const double part = dropout.threshold / 65536.0;
    std::vector<int> pairs(kDraws * kDraws), threes(kDraws * kDraws);
    for (int call = 0; call < kCalls; ++call) {
      const PhiloxWords words =
          dropout_words(dropout_query(head, static_cast<uint32_t>(call) / 256),
                        dropout_key(head, call % 256), head.key);
      const DropoutDraws draws = dropout_draws(words);
      const uint32_t limit = dropout.limit(words.word[0] >> 31 != 0);
      bool below[kDraws];
      for (int i = 0; i < kDraws; ++i) {
        below[i] = (draws.word[i / 2] >> (16 * (i % 2)) & 0x7fff) < limit;
      }
      for (int i = 0; i < kDraws; ++i) {
        if (!below[i]) continue;
        for (int j = 0; j < i; ++j) {
          pairs[i * kDraws + j] += below[j];
          threes[i * kDraws + j] += below[j] && below[(i + j + 1) % kDraws];
        }
      }
    }
    double chi_square = 0;
    int count = 0;
    for (int i = 0; i < kDraws; ++i) {
      for (int j = 0; j < i; ++j, ++count) {
        const double both = kCalls * part * part;
        const double off = pairs[i * kDraws + j] - both;
        EXPECT_LT(std::abs(off) / std::sqrt(both * (1 - part * part)), 5) << i << ", " << j;
        chi_square += off * off / (both * (1 - part * part));
        const int third = (i + j + 1) % kDraws;
        if (third == i || third == j) continue;
        const double all = both * part;
        EXPECT_LT(std::abs(threes[i * kDraws + j] - all), 5.5 * std::sqrt(all) + 1)
            << i << ", " << j;
      }
    }
    EXPECT_LT(std::abs(chi_square - count) / std::sqrt(2.0 * count), 6) << p;
  }
}

TEST(DropoutStatistics, DrawsAreUniform) {
  constexpr int kBins = 256;
  std::vector<double> low(kBins), high(kBins);
  const DropoutHead head = dropout_head(dropout_call_key(5, 0), 0, 0);
  for (int64_t query = 0; query < kRows; ++query) {
    const DropoutQuery part = dropout_query(head, dropout_query_word(query));
    for (int64_t key = 0; key < kRows; ++key) {
      const PhiloxWords words =
          dropout_words(part, dropout_key(head, dropout_key_word(key)), head.key);
      const uint32_t draw = dropout_draws(words).draw(query, key);
      ++low[draw % kBins];
      ++high[draw / (32768 / kBins)];
    }
  }
  constexpr double kExpected = static_cast<double>(kRows * kRows) / kBins;
  for (const std::vector<double>* bins : {&low, &high}) {
    double chi_square = 0;
    for (double n : *bins) chi_square += (n - kExpected) * (n - kExpected) / kExpected;
    EXPECT_LT(std::abs(chi_square - (kBins - 1)) / std::sqrt(2.0 * (kBins - 1)), 5);
  }
}

}  // namespace
}  // namespace fa3::test
