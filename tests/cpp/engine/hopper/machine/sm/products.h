// SPDX-License-Identifier: Apache-2.0
//
// The tensor cores: products that read their operands from issue until their group is waited for,
// and own their accumulators as long.
#pragma once

#include <deque>
#include <vector>

#include "instructions.h"
#include "sm/memory.h"

namespace fa3::machine {

// The products of one warp. Warps of a warpgroup need not keep step here, which is more than the
// hardware allows.
class Products {
 public:
  void multiply(float* d, int count, const Operand& a, const Operand& b, bool adds);
  void commit();
  void wait(int pending);
  bool idle() const { return flying_.empty() && open_.accumulators.empty(); }

 private:
  struct Accumulator {
    float* values;
    int count;
    Product product;
  };
  struct Group {
    std::vector<Accumulator> accumulators;
    HeldPieces reads;
  };

  Accumulator& accumulator(float* d, int count, const Content& a);
  bool works_on(const float* d) const;
  void settle(const Accumulator& accumulator) const;

  Group open_;
  std::deque<Group> flying_;
};

}  // namespace fa3::machine
