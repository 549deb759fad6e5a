// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers. Operands are read where a product is issued, and the
// model says whether somebody may touch them until it is waited for; sums are NaN until then.
#pragma once

#include <bit>
#include <deque>
#include <map>
#include <vector>

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/tile/tile_layout.h"
#include "instructions.h"

namespace fa3::hopper::ptx {

using cuda::Element;
using cuda::Major;

// Sums of a lane that are not there yet, by where they belong.
struct LateSums {
  std::map<float*, std::vector<float>> open;
  std::deque<std::map<float*, std::vector<float>>> groups;

  std::vector<float>* find(float* d) {
    if (const auto found = open.find(d); found != open.end()) return &found->second;
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      if (const auto found = group->find(d); found != group->end()) return &found->second;
    }
    return nullptr;
  }
  void commit() {
    groups.push_back(std::move(open));
    open.clear();
  }
  void deliver(int pending) {
    for (; int(groups.size()) > pending; groups.pop_front()) {
      for (auto& [d, sums] : groups.front()) {
        const auto later = [d = d](const auto& group) { return group.contains(d); };
        if (std::none_of(groups.begin() + 1, groups.end(), later)) {
          std::copy(sums.begin(), sums.end(), d);
        }
      }
    }
  }
};

// By thread. CTAs come one after the other; a test clears it behind one that broke off.
inline std::map<unsigned, LateSums> late_sums;

inline LateSums& late_sums_of_warp(int lane) {
  return late_sums[threadIdx.x / machine::kThreadsPerWarp * machine::kThreadsPerWarp +
                   unsigned(lane)];
}

// PTX ISA, "asynchronous warpgroup level matrix shared memory layout": the byte of element
// (outer, inner) of an operand, inner being what lies side by side. Address bits 4 to 6 are XORed
// with bits 7 to 9.
inline uint32_t swizzled(uint64_t descriptor, int outer, int inner_bytes) {
  const auto field = [&](int bit) { return uint32_t(descriptor >> bit & 0x3fff) << 4; };
  const uint32_t eight = field(32), slab = field(16);
  const uint32_t address = field(0) + uint32_t(outer / 8) * eight + uint32_t(outer % 8) * 128 +
                           uint32_t(inner_bytes / 128) * slab + uint32_t(inner_bytes % 128);
  return address ^ (address >> 7 & 7) << 4;
}

template <Element E>
float element_of(uint64_t descriptor, Major major, int kept, int summed) {
  const int outer = major == Major::kK ? kept : summed;
  const int inner = major == Major::kK ? summed : kept;
  uint16_t bits;
  std::memcpy(&bits, machine::smem_at(swizzled(descriptor, outer, inner * 2)), sizeof(bits));
  return cuda::widened<E>(bits);
}

inline void wgmma_fence() {}

// d is 64 rows by 2 * Count columns of a warpgroup: warp w has rows 16 w to 16 w + 15.
template <Element E, Major A = Major::kK, Major B = Major::kK, int Count>
void wgmma_m64k16_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int add) {
  constexpr int kDepth = 16, kRows = 16;
  machine::together("wgmma", d, [=](const auto& lanes) {
    float a[kRows][kDepth], b[2 * Count][kDepth];
    const int warp = int(threadIdx.x) / machine::kThreadsPerWarp % 4;
    for (int k = 0; k < kDepth; ++k) {
      for (int row = 0; row < kRows; ++row) {
        a[row][k] = element_of<E>(a_desc, A, warp * kRows + row, k);
      }
      for (int n = 0; n < 2 * Count; ++n) b[n][k] = element_of<E>(b_desc, B, n, k);
    }
    std::vector<float> sums[machine::kLanes];
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      float* const own = reinterpret_cast<float*>(lanes[size_t(lane)]);
      const std::vector<float>* const late = late_sums_of_warp(lane).find(own);
      for (int i = 0; i < Count; ++i) {
        const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = !add ? 0 : late != nullptr ? (*late)[size_t(i)] : own[i];
        for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[column][k];
        sums[lane].push_back(sum);
      }
    }
    machine::multiply(reinterpret_cast<float*>(lanes[0]), Count, {.descriptor = a_desc, .major = A},
                      {.descriptor = b_desc, .major = B}, add != 0);
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      float* const own = reinterpret_cast<float*>(lanes[size_t(lane)]);
      if (lane > 0) std::fill(own, own + Count, __builtin_nanf(""));
      late_sums_of_warp(lane).open[own] = std::move(sums[lane]);
    }
  });
}

inline void wgmma_commit_group() {
  machine::together("wgmma.commit_group", nullptr, [](const auto&) {
    machine::commit_products();
    for (int lane = 0; lane < machine::kLanes; ++lane) late_sums_of_warp(lane).commit();
  });
}
template <int Pending>
void wgmma_wait_group() {
  machine::together("wgmma.wait_group", nullptr, [](const auto&) {
    machine::wait_for_products(Pending);
    for (int lane = 0; lane < machine::kLanes; ++lane) late_sums_of_warp(lane).deliver(Pending);
  });
}

}  // namespace fa3::hopper::ptx
