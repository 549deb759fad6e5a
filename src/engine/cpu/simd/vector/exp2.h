// SPDX-License-Identifier: Apache-2.0
//
// Vector functions of the softmax: exp2 and tanh. Relative error of exp2 below 2.5e-7; exactly 1 at
// 0, which the largest weight of a row relies on; 0 below 2^-127, and inf (AVX-512) or 2^127
// (others) above: large enough to fail the guard of softmax.h. NaN stays NaN. Coefficients: least
// largest relative error, the constant held at 1. Next: multiply.h.
#pragma once

#include "engine/cpu/simd/vector/vector.h"

namespace fa3::cpu::FA3_ISA {

constexpr float kLog2E = 1.44269504f;

// Coefficients of 2^f, highest power first, for the f of this instruction set.
struct Exp2Polynomial {
#if defined(__AVX512F__)
  float c5 = 0.00186695263f, c4 = 0.00901748054f, c3 = 0.0557995141f;  // f in [0, 1)
  float c2 = 0.240164593f, c1 = 0.693151295f, c0 = 1.0f;
#else
  float c5 = 0.00132695877f, c4 = 0.00967129413f, c3 = 0.0555071086f;  // f in [-1/2, 1/2]
  float c2 = 0.240222469f, c1 = 0.693147004f, c0 = 1.0f;
#endif

  FA3_INLINE V evaluate(const Exp2Polynomial& c, V f) {
    V p = f * broadcast_from(&c.c5) + broadcast_from(&c.c4);
    p = p * f + broadcast_from(&c.c3);
    p = p * f + broadcast_from(&c.c2);
    p = p * f + broadcast_from(&c.c1);
    return p * f + broadcast_from(&c.c0);
  }
};

#if defined(__AVX512F__)

// 2^x = 2^(x - floor x) * 2^floor(x); vscalefps takes the floor itself.
FA3_INLINE V exp2(V x, const Exp2Polynomial& polynomial) {
  constexpr int kMinusFloor = 0x09;  // x - floor(x), no precision exception
  const V f = (V)_mm512_reduce_ps((__m512)x, kMinusFloor);
  return (V)_mm512_scalef_ps((__m512)Exp2Polynomial::evaluate(polynomial, f), (__m512)x);
}

#else

// 2^x = 2^(x - n) * 2^n with n = round(x). Adding kRound leaves n + 127 in the low bits of the sum,
// from where a shift makes 2^n. At n = -127 that is 0.
FA3_INLINE V exp2(V x, const Exp2Polynomial& polynomial) {
  constexpr float kRound = 0x1.8p23f + 127.0f;
  x = clamp(x, -127.0f, 127.0f);
  const V shifted = x + kRound;
  const V f = x - (shifted - kRound);
  return Exp2Polynomial::evaluate(polynomial, f) * (V)((VInt)shifted << 23);
}

#endif

FA3_INLINE V exp2(V x) {
  return exp2(x, Exp2Polynomial{});
}

// P = exp(score - lse) of a backward, from a float32 LSE: of large scores it may be off by more
// than the range of exp, but no probability is more than 1.
FA3_INLINE V probability(V score, V lse, const Exp2Polynomial& polynomial) {
  return exp2(at_most((score - lse) * kLog2E, 0.0f), polynomial);
}

// 1 / (1 + e^-x), from powers that cannot overflow.
FA3_INLINE V sigmoid(V x) {
  const V size = x < 0.0f ? -x : x;
  const V e = exp2(size * -kLog2E);
  return (x < 0.0f ? e : V{} + 1.0f) / (e + 1.0f);
}

// An odd polynomial near 0, where 1 - 2 / (e^2x + 1) cancels.
FA3_INLINE V tanh(V x) {
  constexpr float kTwoLog2E = 2.88539008f;
  const V square = x * x;
  V small = square * -5.70498872745e-3f + 2.06390887954e-2f;
  small = small * square - 5.37397155531e-2f;
  small = small * square + 1.33314422036e-1f;
  small = small * square - 3.33332819422e-1f;
  small = small * square * x + x;
  const V large = 1.0f - 2.0f / (exp2(x * kTwoLog2E) + 1.0f);
  return square < broadcast(0.625f * 0.625f) ? small : large;
}

// tanh(scale * score / softcap). Where the quotient of the factors is no normal number it is not
// formed.
FA3_INLINE V cap_fraction(V score, float scale, float softcap) {
  constexpr float kLeastNormal = 0x1p-126f;
  const float factor = scale / softcap;
  const bool is_normal = factor >= kLeastNormal && factor < kInfinity;
  return tanh(is_normal ? score * factor : score * scale / softcap);
}

}  // namespace fa3::cpu::FA3_ISA
