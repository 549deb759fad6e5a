// SPDX-License-Identifier: Apache-2.0
// Tensors of latent calls, and their numbers of 16 bits.
#pragma once

#include <fa3/fa3.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "support/memory/guarded_memory.h"

namespace fa3::test {

inline constexpr int kValues = 512;  // channels of V

inline uint16_t narrow(double x, fa3_dtype dtype) {
  return dtype == FA3_FLOAT16 ? from_float<Float16>(float(x)).bits
                              : from_float<BFloat16>(float(x)).bits;
}
inline double widen(uint16_t bits, fa3_dtype dtype) {
  return dtype == FA3_FLOAT16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

// The memory of a call's tensors.
class PlacedTensors {
 protected:
  // host null: NaN.
  fa3_tensor place(const void* host, size_t bytes, int32_t dtype, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& stride, fa3_device_type memory) {
    constexpr size_t kAlignment = 16;
    GuardedMemory& placed = memory_.emplace_back(memory, bytes, kAlignment);
    if (host != nullptr) placed.write(host, bytes);
    fa3_tensor t{};
    t.data = placed.data();
    t.dtype = dtype, t.device_type = memory, t.rank = int32_t(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    std::copy(stride.begin(), stride.end(), t.stride);
    return t;
  }

  std::vector<GuardedMemory> memory_;  // in the order of place()
};

}  // namespace fa3::test
