// SPDX-License-Identifier: Apache-2.0
//
// Instructions with numbers: kernels' own sources compute on the host what a GPU would, on the
// fibres of the protocol model (hopper/machine), a lane each. This folder stands in front of the
// model's doubles. Copies by cp.async arrive when their thread waits for them, no sooner; until
// then NaN lies in their place. Next: warp_program.h.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "cuda_words.h"
#include "instructions.h"

namespace fa3::machine {

inline unsigned char* smem_at(uint32_t address) {
  return shared_memory() + (address - kSmemBase);
}

// What each lane of the warp brings, whole.
template <class T>
std::array<T, kLanes> brought(const char* instruction, const T& mine) {
  constexpr size_t kWords = (sizeof(T) + 7) / 8;
  std::array<T, kLanes> all;
  std::array<std::array<uint64_t, kWords>, kLanes> words{};
  std::array<uint64_t, kWords> own{};
  std::memcpy(own.data(), &mine, sizeof(T));
  for (size_t w = 0; w < kWords; ++w) {
    const auto& of_lanes = exchange(instruction, own[w]);
    for (size_t lane = 0; lane < size_t(kLanes); ++lane) words[lane][w] = of_lanes[lane];
  }
  for (size_t lane = 0; lane < size_t(kLanes); ++lane) {
    std::memcpy(&all[lane], words[lane].data(), sizeof(T));
  }
  return all;
}

}  // namespace fa3::machine
