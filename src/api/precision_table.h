// SPDX-License-Identifier: Apache-2.0
//
// Rates of attention in bf16 and in FP8, and of the quantizer, for advise.cpp: measured on one H200
// (docs/lab/fp8.md), 16k tokens, heads * head dim 2048, as many keys as queries.
#pragma once

#include <cstdint>

namespace fa3::api {

inline constexpr int64_t kRateKeys[] = {1024, 2048, 4096, 8192, 16384};

// TFLOP/s by kRateKeys.
struct AttentionRates {
  int64_t head_dim;  // of narrower heads too
  bool causal;
  double wide[5];    // bf16; fp16 has them within a few percent
  double fp8[5];     // without the quantizer
  double quantizer;  // TB/s: q, k and v are read in 16 bits, and written in FP8
};

inline constexpr AttentionRates kAttentionRates[] = {
    {64, false, {515, 569, 576, 613, 633}, {467, 538, 569, 611, 635}, 2.34},
    {64, true, {383, 494, 548, 598, 625}, {318, 445, 522, 593, 626}, 2.34},
    {128, false, {674, 741, 766, 789, 798}, {685, 787, 878, 914, 923}, 2.34},
    {128, true, {519, 633, 714, 782, 808}, {507, 666, 802, 898, 927}, 2.34},
    {256, false, {712, 765, 802, 821, 798}, {919, 1083, 1198, 1234, 1185}, 1.80},
    {256, true, {568, 679, 750, 783, 811}, {665, 896, 1082, 1178, 1154}, 1.80},
};

// Shorter calls do not fill the GPU, or wait for memory: these rates do not say how long they take.
inline constexpr double kLeastSeconds = 1e-4;

// FP8 pays from here on, of the time in 16 bits: in calls of 100,000 tokens and more, which meet
// the power limit, it was up to 10% slower against 16 bits than these rates say.
inline constexpr double kMostOfWide = 0.93;

// Relative errors of O on normal numbers: CPU engine, 1k and 4k tokens, head dims 64 to 256.
inline constexpr double kErrorFloat16 = 2.1e-4, kErrorBfloat16 = 2.3e-3, kErrorFp8 = 4.7e-2;

}  // namespace fa3::api
