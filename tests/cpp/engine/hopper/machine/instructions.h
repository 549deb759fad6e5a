// SPDX-License-Identifier: Apache-2.0
//
// What machine/engine/hopper/ptx/ calls: the instructions, by the warp that runs now.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "lanes.h"
#include "machine.h"

namespace fa3::machine {

struct Coordinates {
  int column, row, head, batch;
  int inner = 0;
};

// An operand of a product: a descriptor (tile/layout.h), or registers.
struct Operand {
  bool in_registers = false;
  uint64_t descriptor = 0;
  cuda::Major major = cuda::Major::kK;
  int element_bytes = 2;
};

void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_arrive(uint32_t barrier, int64_t bytes);
bool barrier_passed(uint32_t barrier, uint32_t parity);
void barrier_wait(uint32_t barrier, uint32_t parity);
void named_arrive(int id, int threads);
void named_sync(int id, int threads);
unsigned named_count(int id, int threads, bool value);
unsigned cluster_rank();
void cluster_arrive();
// Tells what lies before a fence_mbarrier_init(), and which phases of mbarriers are over.
void cluster_arrive_relaxed();
void fence_mbarrier_init();
void cluster_wait();
// An address in another CTA of the cluster; and floats to one, which its barrier counts the bytes
// of. Addresses of the CTA itself are those of its pointers.
uint32_t in_cluster(uint32_t address, unsigned rank);
void send_to_cta(uint32_t address, const float* values, int count, uint32_t barrier);
// From this CTA's shared memory; and an arrival at another's barrier.
void copy_to_cta(uint32_t to, uint32_t from, int bytes, uint32_t barrier);
void arrive_at_cta(uint32_t barrier);
uint32_t shared_address(const void* pointer);
unsigned char* smem_at(uint32_t address);
// The lanes of a warp come to one instruction, and the last of them does its work for all: on what
// each has left behind the pointer that it brings.
void together(const char* instruction, void* mine,
              const std::function<void(const std::array<uint64_t, kLanes>& lanes)>& work);
void set_registers(int registers, bool more);

void store_shared(uint32_t address);
void load_shared(uint32_t address);
void fence_proxy_async();
void fence_proxy_async_global();
void wait_for_kernel_before();
void copy_by_thread(uint32_t smem, const void* global);
void copy_by_thread(uint32_t smem, std::vector<unsigned char> bytes);
void arrive_when_copied(uint32_t barrier);
void wait_for_thread_copies();
void commit_thread_copies();
void wait_for_thread_copies(int newest_groups);
void store_global(const void* pointer);
void load_global(const void* pointer);
void add_global(const void* pointer, int bytes);
int load_semaphore(const int* counter);
// Counts the splits of CTAs that do exist.
uint64_t count_split(uint64_t* counter, uint64_t splits);
bool replace_count(uint64_t* counter, uint64_t expected, uint64_t value);
void add_to_semaphore(int* counter, int value);
void raise_flag(uint64_t* flag, uint64_t value);
void wait_for_flag(const uint64_t* flag, uint64_t value);
void take_back_flag(uint64_t* flag, uint64_t value);

void load_tile(uint32_t smem, const CUtensorMap& map, Coordinates at, uint32_t barrier);
void load_bytes(uint32_t smem, const void* global, int bytes, uint32_t barrier);
void store_tile(const CUtensorMap& map, Coordinates at, uint32_t smem);
void store_bytes(const void* global, uint32_t smem, int bytes, bool adds);
void commit_copies();
void wait_for_copies(int pending);
void wait_for_arrival(int pending);

// d = A B or d += A B, of 64 rows by 2 * count columns a warpgroup, 32 bytes deep.
void multiply(float* d, int count, const Operand& a, const Operand& b, bool adds);
void commit_products();
void wait_for_products(int pending);
// Online arithmetic on x; not on an accumulator that a product works on.
float settled(float x);

}  // namespace fa3::machine
