// SPDX-License-Identifier: Apache-2.0
//
// core/dropout.h for vectors of keys: rounds 2 to 7 of Philox for a row and as many keys as there
// are lanes, in halves of 64-bit lanes, since that is how a 32-bit product comes. Next: softmax.h.
#pragma once

#include "engine/cpu/dropout_job.h"
#include "engine/cpu/simd/pack.h"

namespace fa3::cpu::FA3_ISA {

// Lanes whose lower halves are numbers of 32 bits; what is in the upper ones does not count.
typedef uint64_t VWide __attribute__((vector_size(4 * kWidth)));
constexpr int kWideLanes = kWidth / 2;

// Keys of 16, in each of which one call serves four, are made in whole vectors.
constexpr int64_t kDropoutKeys = kWidth == 16 ? 32 : 16;

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
  VBits threshold;
  int32_t left_shift;

  FA3_INLINE DropoutLanes of(const DropoutJob& job, const DropoutRowPart& row) {
    DropoutLanes lanes = {.of_keys = wide(job.of_keys),
                          .to_keys = wide(row.to_keys),
                          .word0 = wide(row.word0),
                          .word2 = wide(row.word2),
                          .word3 = wide(row.word3),
                          .round_keys = {},
                          .threshold = VBits{} + job.threshold,
                          .left_shift = row.left_shift};
    FA3_UNROLL
    for (int i = 0; i < 8; ++i) lanes.round_keys[i / 2][i % 2] = wide(job.round_keys[i / 2][i % 2]);
    return lanes;
  }
};

// The words of one call for each lane: the key words in `keys`.
FA3_INLINE void dropout_words(const DropoutLanes& lanes, VWide keys, VWide (&words)[4]) {
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
}

// All ones where the row keeps a key, else zero, for lanes of words of even and of odd keys.
FA3_INLINE VBits kept(const DropoutLanes& lanes, VWide even, VWide odd) {
  const auto draws = (VBits)((even & 0xffffffffu) | odd << 32);
  return (VBits)(draws << lanes.left_shift >= lanes.threshold);
}

// keep[i] is all ones where the row keeps key begin + i, else zero, for `count` keys and up to
// kDropoutKeys more; begin is a multiple of 16.
static void keep_mask(const DropoutJob& job, const DropoutRowPart& row, int64_t begin,
                      int64_t count, uint32_t* keep) {
  // Consecutive lanes have pairs of keys: 4 of them, then the next 16 keys.
  constexpr int kRun = kWidth < 8 ? kWidth : 8;
  const DropoutLanes lanes = DropoutLanes::of(job, row);
  VWide keys = wide(static_cast<uint32_t>(begin / 4));
  FA3_UNROLL
  for (int i = 0; i < kWideLanes; ++i) keys[i] += static_cast<uint32_t>(i);
  for (int64_t i = 0; i < count; i += kDropoutKeys, keep += kDropoutKeys) {
    FA3_UNROLL
    for (int part = 0; part < kDropoutKeys / (2 * kWidth); ++part) {
      VWide words[4];
      dropout_words(lanes, keys, words);
      keys += kWideLanes;
      const VBits first = kept(lanes, words[0], words[2]);
      const VBits second = kept(lanes, words[1], words[3]);
      FA3_UNROLL
      for (int run = 0; run < kWidth / kRun; ++run) {
        uint32_t* const to = keep + part * kRun + run * 16;
        __builtin_memcpy(to, (const uint32_t*)&first + run * kRun, kRun * sizeof(uint32_t));
        __builtin_memcpy(to + 8, (const uint32_t*)&second + run * kRun, kRun * sizeof(uint32_t));
      }
    }
  }
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
  alignas(64) uint32_t keep[kSpan + 16 + kDropoutKeys];
  for (; begin < end; begin += kSpan, p += kSpan / Format::kStep) {
    const int64_t before = begin % 16;
    const int64_t count = smaller(kSpan, end - begin);
    const int64_t vectors = (count + kWidth - 1) / kWidth * kWidth;
    keep_mask(job, row, begin - before, before + vectors, keep);
    for (int64_t i = 0; i < vectors; i += kWidth) {
      Format::mask_p(p, i, load_mask(keep + before + i));
    }
  }
}

}  // namespace fa3::cpu::FA3_ISA
