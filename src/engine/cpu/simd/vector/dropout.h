// SPDX-License-Identifier: Apache-2.0
//
// core/dropout/dropout.h for vectors of keys: rounds 2 to 7 of Philox for a row and as many calls
// as there are lanes, in halves of 64-bit lanes, since that is how a 32-bit product comes; and the
// sums of their words. Next: softmax.h.
#pragma once

#include "core/dropout/dropout_sums.h"
#include "engine/cpu/kernels/dropout_job.h"
#include "engine/cpu/simd/vector/pack.h"

namespace fa3::cpu::FA3_ISA {

// Lanes whose lower halves are numbers of 32 bits; what is in the upper ones does not count.
typedef uint64_t VWide __attribute__((vector_size(4 * kWidth)));
constexpr int kWideLanes = kWidth / 2;

// Four calls serve 64 keys of a row; masks are made for as many as whole vectors of calls do.
constexpr int64_t kCallKeys = 64;
constexpr int64_t kDropoutKeys = kWideLanes > 4 ? kWideLanes / 4 * kCallKeys : kCallKeys;

FA3_INLINE VWide wide(uint32_t value) {
  return VWide{} + value;
}

// Products of the lower halves.
FA3_INLINE VWide multiply_low(VWide a, VWide b) {
#if defined(__AVX512F__)
  return (VWide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (VWide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (VWide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(FA3_NEON)
  return (VWide)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

FA3_INLINE VWide multiply0(VWide x) {
  return multiply_low(x, wide(0xD2511F53u));
}

FA3_INLINE VWide multiply1(VWide x) {
  return multiply_low(x, wide(0xCD9E8D57u));
}

// A row's constants in every lane. In memory: there are more than registers.
struct DropoutLanes {
  VWide of_keys, to_keys, word0, word2, word3;
  VWide round_keys[4][2];
  VWide limits[2];

  FA3_INLINE DropoutLanes of(const DropoutJob& job, const DropoutRowPart& row) {
    DropoutLanes lanes = {.of_keys = wide(job.of_keys),
                          .to_keys = wide(row.to_keys),
                          .word0 = wide(row.word0),
                          .word2 = wide(row.word2),
                          .word3 = wide(row.word3),
                          .round_keys = {},
                          .limits = {wide(job.limits[0]), wide(job.limits[1])}};
    FA3_UNROLL
    for (int i = 0; i < 8; ++i) lanes.round_keys[i / 2][i % 2] = wide(job.round_keys[i / 2][i % 2]);
    return lanes;
  }
};

// The words of one call for each lane: the key words in `keys`.
FA3_INLINE void dropout_words(const DropoutLanes& lanes, VWide keys,
                              VWide (&words)[kDropoutWords]) {
  const VWide two = multiply0(keys ^ lanes.of_keys);
  const VWide three = multiply1((two >> 32) ^ lanes.to_keys);
  words[0] = (three >> 32) ^ lanes.word0;
  words[1] = three;
  words[2] = two ^ lanes.word2;
  words[3] = lanes.word3;
  FA3_UNROLL
  for (int round = 0; round < 4; ++round) {
    const VWide a = multiply0(words[0]), b = multiply1(words[2]);
    words[0] = (b >> 32) ^ words[1] ^ lanes.round_keys[round][0];
    words[2] = (a >> 32) ^ words[3] ^ lanes.round_keys[round][1];
    words[1] = b;
    words[3] = a;
  }
  FA3_UNROLL
  for (int i = kPhiloxWords; i < kDropoutWords; ++i) {
    const DropoutSum sum = kDropoutSums[i - kPhiloxWords];
    words[i] = multiply_low(words[sum.times], wide(sum.factor)) + words[sum.plus];
  }
}

// All ones where the row keeps a key, else zero: of the two keys of each lane's word, in turn.
FA3_INLINE VBits kept(VWide word, VBits limits, VBits dropped_if_rare) {
  constexpr uint64_t kDraw = 0x7fff;
  const auto draws = (VInt)((word & kDraw) | (word << 16 & kDraw << 32));
  return (VBits)(draws < (VInt)limits) ^ dropped_if_rare;
}

// keep[i] is all ones where the row keeps key begin + i, else zero, for `count` keys and up to
// kDropoutKeys more; begin is a multiple of kCallKeys. Word: the row's first word.
template <int kWord>
static void keep_mask_of(const DropoutJob& job, const DropoutRowPart& row, int64_t begin,
                         int64_t count, uint32_t* keep) {
  // A vector of calls has these keys of each 8 of 64, or all of them and the next 64 keys' as well.
  constexpr int kRun = kWidth < 8 ? kWidth : 8;
  const DropoutLanes lanes = DropoutLanes::of(job, row);
  const VBits dropped_if_rare = VBits{} + job.dropped_if_rare;
  VWide keys = wide(job.first_key_word + static_cast<uint32_t>(begin / kCallKeys * 4));
  FA3_UNROLL
  for (int i = 0; i < kWideLanes; ++i) keys[i] += static_cast<uint32_t>(i);
  for (int64_t i = 0; i < count; i += kDropoutKeys, keep += kDropoutKeys) {
    FA3_UNROLL
    for (int first = 0; first < 8; first += kWidth < 8 ? kWidth : 8) {
      VWide words[kDropoutWords];
      dropout_words(lanes, keys, words);
      keys += kWideLanes;
      const VWide up = wide(0) - (words[0] >> 31 & 1);
      const VWide limit = (lanes.limits[0] & ~up) | (lanes.limits[1] & up);
      const auto limits = (VBits)(limit | limit << 32);
      FA3_UNROLL
      for (int j = 0; j < 8; ++j) {
        const VBits mask = kept(words[2 * j + kWord], limits, dropped_if_rare);
        FA3_UNROLL
        for (int run = 0; run < kWidth / kRun; ++run) {
          __builtin_memcpy(keep + run * kCallKeys + 8 * j + first,
                           (const uint32_t*)&mask + run * kRun, kRun * sizeof(uint32_t));
        }
      }
    }
  }
}

static void keep_mask(const DropoutJob& job, const DropoutRowPart& row, int64_t begin,
                      int64_t count, uint32_t* keep) {
  (row.first_word == 0 ? keep_mask_of<0> : keep_mask_of<1>)(job, row, begin, count, keep);
}

FA3_INLINE VBits load_mask(const uint32_t* from) {
  VBits v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

// Sets weights that the row drops to zero: those of keys [begin, end), of which p has `begin`
// first.
template <class Format>
static void drop_weights(const DropoutJob& job, const DropoutRowPart& row, int64_t begin,
                         int64_t end, float* p) {
  constexpr int64_t kSpan = 128;
  alignas(64) uint32_t keep[kSpan + kCallKeys + kDropoutKeys];
  for (; begin < end; begin += kSpan, p += kSpan / Format::kStep) {
    const int64_t before = begin % kCallKeys;
    const int64_t count = smaller(kSpan, end - begin);
    const int64_t vectors = (count + kWidth - 1) / kWidth * kWidth;
    keep_mask(job, row, begin - before, before + vectors, keep);
    for (int64_t i = 0; i < vectors; i += kWidth) {
      Format::mask_p(p, i, load_mask(keep + before + i));
    }
  }
}

}  // namespace fa3::cpu::FA3_ISA
