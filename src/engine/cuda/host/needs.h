// SPDX-License-Identifier: Apache-2.0
// What a call needs and what a kernel offers, as sets. A kernel can do a call whose needs it
// covers. Next: an engine's offers_of() and needs_of().
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace fa3::cuda {

// The first kinds make a call one of its own: a refusal names them before what is missing.
enum class Need : unsigned char {
  kE4m3,           // queries, keys and values
  kQuantizedKeys,  // float8 keys and values beside 16-bit queries
  kBlockMask,
  kScoreFunction,
  kDropout,
  kGate,
  kMaxLogit,
  kPartial,  // goes on from a result over other keys
  kSoftcap,
  kSink,
  kChunks,
  kLeftWindow,
  kRightWindow,  // a right side other than the diagonal
  kMasked,       // something is hidden
  kVarlenQueries,
  kVarlenKeys,
  kPackedKeys,
  kElsewhere,  // a page table or a batch index
  kIndexed,    // entries of a cache in another order than sequences, or fewer
  kLeftPadding,
  kSingleRows,  // keys are copied row by row, from pages of odd sizes
  kFloat32Out,
  kRowsNot8,  // head dims that are no multiples of 8, of 16
  kRowsNot16,
  kManySplits,  // num_splits above 1, other than 0
  kAnySplits,
  kBatchInvariant,
  kFewRowsOfGroup,    // few queries of the heads that share keys
  kNoCpAsync,         // strides of keys or values that cp.async cannot follow
  kValuesNotByTma,    // of e4m3, as the next two
  kTransposedValues,  // given
  kNoKeys,
  kScorePure,  // the kind of a score function: captures nothing
  kScoreLine,
  kScoreTwoLines,
  kScoreKeyTerm,
  kScoreRun,
  kScoreClampedRun,
  kScoreTile,  // adds a tensor as large as the scores
  kScoreOther,
  kFindsTiles,  // a tiling's: CTAs find their tiles, or splits, in the lengths
  kFixedSplits  // a tiling's
};
inline constexpr int kNumNeeds = int(Need::kFixedSplits) + 1;

class Needs {
 public:
  constexpr Needs() = default;
  constexpr Needs(std::initializer_list<Need> needs) {
    for (const Need need : needs) bits_ |= bit(need);
  }
  static constexpr Needs all() { return of_bits((uint64_t{1} << kNumNeeds) - 1); }

  friend constexpr bool operator==(Needs, Needs) = default;
  constexpr bool has(Need need) const { return (bits_ & bit(need)) != 0; }
  constexpr bool covers(Needs other) const { return (other - *this).empty(); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Need first() const { return Need(std::countr_zero(bits_)); }  // of a set that has some

  constexpr void set(Need need, bool on = true) {
    if (on) bits_ |= bit(need);
  }
  friend constexpr Needs operator|(Needs a, Needs b) { return of_bits(a.bits_ | b.bits_); }
  friend constexpr Needs operator&(Needs a, Needs b) { return of_bits(a.bits_ & b.bits_); }
  friend constexpr Needs operator-(Needs a, Needs b) { return of_bits(a.bits_ & ~b.bits_); }

 private:
  static constexpr uint64_t bit(Need need) { return uint64_t{1} << int(need); }
  static constexpr Needs of_bits(uint64_t bits) {
    Needs needs;
    needs.bits_ = bits;
    return needs;
  }

  uint64_t bits_ = 0;
};

// Makes a call one of its own: a refusal names it before what is missing.
constexpr bool is_kind(Need need) {
  return need <= Need::kPartial;
}

const char* words_of(Need need);

}  // namespace fa3::cuda
