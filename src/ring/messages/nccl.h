// SPDX-License-Identifier: Apache-2.0
//
// The few functions of NCCL that a ring calls, from a libnccl that is found at run time: a build
// needs no NCCL, and a program without rings none either.
#pragma once

#include <fa3/ring.h>
#include <fa3/status.h>

#include <cstddef>
#include <cstdint>

namespace fa3::ring {

struct NcclFunctions {
  int (*count)(void* comm, int* world) = nullptr;
  int (*rank)(void* comm, int* rank) = nullptr;
  int (*device)(void* comm, int* device) = nullptr;
  int (*async_error)(void* comm, int* result) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, size_t count, int type, int peer, void* comm,
              void* stream) = nullptr;
  int (*receive)(void* to, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  const char* (*error)(int result) = nullptr;
  const char* (*last_error)(void* comm) = nullptr;  // null: older than NCCL 2.13
  bool moves_host_memory = false;
};

// The caller's communicator.
class Communicator {
 public:
  // Finds the library and asks the communicator who it is.
  Status open(const fa3_ring& ring);

  int32_t world() const { return world_; }
  int32_t rank() const { return rank_; }
  int device() const { return device_; }
  bool moves_host_memory() const { return nccl_.moves_host_memory; }

  // Messages between begin() and end() start together. Those between two ranks arrive in order.
  Status begin() const;
  Status send(const void* from, int64_t bytes, int32_t to, void* stream) const;
  Status receive(void* to, int64_t bytes, int32_t from, void* stream) const;
  Status end() const;

 private:
  Status check(int result, const char* what) const;

  NcclFunctions nccl_;
  void* comm_ = nullptr;
  int world_ = 1;
  int rank_ = 0;
  int device_ = 0;
};

}  // namespace fa3::ring
