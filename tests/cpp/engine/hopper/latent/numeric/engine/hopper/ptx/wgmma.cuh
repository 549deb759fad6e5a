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

constexpr int kDepth = 16, kRows = 16;  // of a product, and of a warp's part of A

// A lane's sums, and its registers of A.
struct LaneOperands {
  float* d;
  const uint32_t* a;
};

// d is 64 rows by 2 * Count columns of a warpgroup: warp w has rows 16 w to 16 w + 15. a_of gives
// (row of the warp, k) of A.
template <Element E, Major B, int Count, class AOf>
void multiply(const std::array<uint64_t, machine::kLanes>& lanes, const machine::Operand& a_operand,
              const AOf& a_of, uint64_t b_desc, int add) {
  float a[kRows][kDepth], b[2 * Count][kDepth];
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) a[row][k] = a_of(row, k);
    for (int n = 0; n < 2 * Count; ++n) b[n][k] = element_of<E>(b_desc, B, n, k);
  }
  const auto own_of = [&](int lane) {
    return reinterpret_cast<const LaneOperands*>(lanes[size_t(lane)])->d;
  };
  std::vector<float> sums[machine::kLanes];
  for (int lane = 0; lane < machine::kLanes; ++lane) {
    const float* const own = own_of(lane);
    const std::vector<float>* const late = late_sums_of_warp(lane).find(own_of(lane));
    for (int i = 0; i < Count; ++i) {
      const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = !add ? 0 : late != nullptr ? (*late)[size_t(i)] : own[i];
      for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[column][k];
      sums[lane].push_back(sum);
    }
  }
  machine::multiply(own_of(0), Count, a_operand, {.descriptor = b_desc, .major = B}, add != 0);
  for (int lane = 0; lane < machine::kLanes; ++lane) {
    float* const own = own_of(lane);
    if (lane > 0) std::fill(own, own + Count, __builtin_nanf(""));
    late_sums_of_warp(lane).open[own] = std::move(sums[lane]);
  }
}

template <Element E, Major A = Major::kK, Major B = Major::kK, int Count>
void wgmma_m64k16_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int add) {
  LaneOperands mine{d, nullptr};
  machine::together("wgmma", &mine, [=](const auto& lanes) {
    const int warp = int(threadIdx.x) / machine::kThreadsPerWarp % 4;
    const auto a = [&](int row, int k) { return element_of<E>(a_desc, A, warp * kRows + row, k); };
    multiply<E, B, Count>(lanes, {.descriptor = a_desc, .major = A}, a, b_desc, add);
  });
}

// Register i of lane l has of A the neighbours 2 (l % 4) and one more of row l / 4; odd registers 8
// rows below, the last two 8 columns on.
template <Element E, Major B = Major::kMn, int Count>
void wgmma_m64k16_rs(float (&d)[Count], const uint32_t (&a)[4], uint64_t b_desc, int add) {
  LaneOperands mine{d, a};
  machine::together("wgmma", &mine, [=](const auto& lanes) {
    const auto of = [&](int row, int k) {
      const auto lane = size_t(row % 8 * 4 + k % 8 / 2);
      const uint32_t pair =
          reinterpret_cast<const LaneOperands*>(lanes[lane])->a[k / 8 * 2 + row / 8];
      return cuda::widened<E>(uint16_t(pair >> k % 2 * 16));
    };
    multiply<E, B, Count>(lanes, {.in_registers = true}, of, b_desc, add);
  });
}

// Products of e4m3, which no latent kernel has.
template <int Count>
void wgmma_m64k32_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int add);
template <int Count>
void wgmma_m64k32_rs(float (&d)[Count], const uint32_t (&a)[4], uint64_t b_desc, int add);

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
