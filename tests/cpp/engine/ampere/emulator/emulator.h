// SPDX-License-Identifier: Apache-2.0
//
// A GPU that runs kernels' own sources on the host, with their arithmetic: threads are fibres, and
// the instructions of a warp (ldmatrix, mma.sync, shuffles) happen when all of its lanes have come.
// Warps are drawn at random, and copies by cp.async arrive no earlier than somebody waits for them,
// so a missing barrier gives wrong numbers in some order. Slow: for small shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace fa3::emulator {

inline constexpr int kLanes = 32;

// Runs a CTA's threads to their end; throws a sentence where nobody can go on.
void run_cta(int threads, int smem_bytes, unsigned seed, const std::function<void()>& body);

// What a fibre calls.
unsigned char* shared_memory();
void barrier_sync(int id, int threads);
void barrier_arrive(int id, int threads);
void yield();

// The lanes of a warp meet; the last one to come does the work for all, which have left `mine`.
// `instruction` must be the same for all.
void meet(const char* instruction, void* mine, const std::function<void(void* const* lanes)>& work);

// Copies of the running thread.
void copy_later(uint32_t smem, const void* global, int bytes, int filled);
void end_copy_group();
void wait_for_copies(int newest_groups);

template <class T>
T of_lane(const char* instruction, T value, int lane) {
  struct Mine {
    T value;
    int lane;
    T got;
  } mine{value, lane, value};
  meet(instruction, &mine, [](void* const* lanes) {
    for (int i = 0; i < kLanes; ++i) {
      Mine& m = *static_cast<Mine*>(lanes[i]);
      m.got = static_cast<Mine*>(lanes[m.lane])->value;
    }
  });
  return mine.got;
}

// Makes a kernel known to launches (runtime.cpp).
void add_kernel(const void* function, std::function<void(void*)> call);
template <class Params>
const void* add(void (*kernel)(Params)) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  add_kernel(function, [kernel](void* params) { kernel(*static_cast<Params*>(params)); });
  return function;
}
void set_seed(unsigned seed);

}  // namespace fa3::emulator
