// SPDX-License-Identifier: Apache-2.0
//
// Registers: a block gets what its launch gives each thread, and setmaxnreg moves them between
// warps. Who asks for more than is free waits, as on the hardware, perhaps for ever.
#pragma once

#include <vector>

namespace fa3::machine {

class Registers {
 public:
  // Registers of a block of `warps`, where so many share the register file.
  Registers(int sharing, int warps);

  void decrease(int registers);
  void increase(int registers);

  // When the block is over: setmaxnreg is for whole warpgroups.
  void require_whole_warpgroups() const;

 private:
  void require_sensible(int registers) const;

  std::vector<int> of_warp_;  // of each of its threads
  int free_ = 0;              // in the same unit
};

}  // namespace fa3::machine
