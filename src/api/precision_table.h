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
    {64, false, {497, 566, 601, 632, 644}, {461, 542, 595, 633, 647}, 2.33},
    {64, true, {358, 475, 544, 599, 627}, {308, 438, 523, 592, 627}, 2.33},
    {128, false, {651, 745, 777, 806, 819}, {657, 768, 897, 980, 1021}, 2.77},
    {128, true, {493, 619, 717, 791, 823}, {478, 642, 801, 922, 997}, 2.77},
    {256, false, {690, 773, 813, 838, 848}, {870, 1077, 1212, 1282, 1324}, 2.17},
    {256, true, {542, 664, 757, 800, 839}, {629, 860, 1054, 1210, 1287}, 2.17},
};

// Shorter calls do not fill the GPU, or wait for memory: these rates do not say how long they take.
inline constexpr double kLeastSeconds = 1e-4;

// FP8 pays from here on, of the time in 16 bits: in calls of 100,000 tokens and more, which meet
// the power limit, it was up to 12% slower against 16 bits than these rates say.
inline constexpr double kMostOfWide = 0.90;

// Relative errors of O on normal numbers: CPU engine, 1k and 4k tokens, head dims 64 to 256.
inline constexpr double kErrorFloat16 = 2.1e-4, kErrorBfloat16 = 2.3e-3, kErrorFp8 = 4.7e-2;

}  // namespace fa3::api
