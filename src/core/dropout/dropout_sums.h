// SPDX-License-Identifier: Apache-2.0
//
// Sixteen words of draws from the four of one call of Philox: it leaves the first four, and each
// further one is a multiple of one word plus another. Plain data, for code of any instruction set.
//
// Whatever one word is, any other is uniform: over numbers modulo 2 the sixteen are different sums
// of the four, so every two of them can be solved for two of the four. The last alone has the
// parity of the first. Three and more are tied by factors that are large and whose lattices are
// even: the partial quotients of factor / 2^n are at most 4 (n = 15, 16, 32) or 6 (n = 31). So
// they meet below a threshold as often as independent ones, but for some 2^-15 of it.
#pragma once

#include <cstdint>

namespace fa3 {

struct DropoutSum {
  uint32_t factor;
  int times, plus;  // numbers of words before it
};

inline constexpr int kDropoutWords = 16, kPhiloxWords = 4;
inline constexpr DropoutSum kDropoutSums[kDropoutWords - kPhiloxWords] = {
    {0x4c05b9a9u, 0, 1}, {0x4d9eb82bu, 1, 2}, {0xb3fa4657u, 2, 3}, {0x5affb0d9u, 3, 0},
    {0xc7eec7bbu, 0, 2}, {0x384637c5u, 1, 3}, {0x645c69afu, 4, 2}, {0xb5096883u, 5, 3},
    {0x449cb0e7u, 6, 0}, {0x614ec60fu, 7, 1}, {0x4e49c7d5u, 4, 6}, {0x6f016a02u, 2, 0},
};

}  // namespace fa3
