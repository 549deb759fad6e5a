// SPDX-License-Identifier: Apache-2.0
// The classes of GPUs by the shared memory that a CTA may ask for.
#pragma once

namespace fa3::ampere {

inline constexpr int kSmallSmemBytes = 99 << 10;     // sm_86, sm_89 and sm_120
inline constexpr int kLargeSmemBytes = 163 << 10;    // sm_80
inline constexpr int kLargestSmemBytes = 227 << 10;  // sm_90 and sm_100

}  // namespace fa3::ampere
