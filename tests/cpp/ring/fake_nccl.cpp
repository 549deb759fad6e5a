// SPDX-License-Identifier: Apache-2.0
#include "ring/fake_nccl.h"

#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6;
constexpr auto kPatience = std::chrono::seconds(30);  // a ring that waits in a circle ends

struct World {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> under_way;  // (from, to)
  size_t messages = 0, bytes = 0;
};

struct Comm {
  std::shared_ptr<World> world;
  int ranks = 0, rank = 0;
  int left = INT_MAX;  // messages until it fails
  std::string last_error;
};

struct Operation {
  Comm* comm;
  const void* from;
  void* to;
  size_t bytes;
  int peer;
};

thread_local int t_depth = 0;
thread_local std::vector<Operation> t_operations;

void send(const Operation& of) {
  World& world = *of.comm->world;
  const auto* begin = static_cast<const std::byte*>(of.from);
  const std::lock_guard lock(world.mutex);
  world.under_way[{of.comm->rank, of.peer}].emplace_back(begin, begin + of.bytes);
  world.messages += 1;
  world.bytes += of.bytes;
  world.arrived.notify_all();
}

int receive(const Operation& of) {
  World& world = *of.comm->world;
  std::unique_lock lock(world.mutex);
  auto& from = world.under_way[{of.peer, of.comm->rank}];
  if (!world.arrived.wait_for(lock, kPatience, [&] { return !from.empty(); })) {
    of.comm->last_error = "nothing came from rank " + std::to_string(of.peer);
    return kRemoteError;
  }
  const std::vector<std::byte> message = std::move(from.front());
  from.pop_front();
  if (message.size() != of.bytes) {
    of.comm->last_error =
        "expected " + std::to_string(of.bytes) + " bytes, got " + std::to_string(message.size());
    return kInvalidUsage;
  }
  std::memcpy(of.to, message.data(), message.size());
  return kSuccess;
}

int add(void* comm, Operation of) {
  of.comm = static_cast<Comm*>(comm);
  if (t_depth == 0) return kInvalidUsage;  // the library groups its messages
  if (of.comm->left-- <= 0) {
    of.comm->last_error = "this rank was to fail";
    return kSystemError;
  }
  t_operations.push_back(of);
  return kSuccess;
}

}  // namespace

extern "C" {

int fa3_nccl_moves_host_memory = 1;

void** fake_nccl_world(int ranks) {
  const auto world = std::make_shared<World>();
  auto** comms = new void*[size_t(ranks) + 1];
  for (int rank = 0; rank < ranks; ++rank) {
    comms[rank] = new Comm{.world = world, .ranks = ranks, .rank = rank};
  }
  comms[ranks] = nullptr;
  return comms;
}

void fake_nccl_destroy(void** comms) {
  for (void** comm = comms; *comm != nullptr; ++comm) delete static_cast<Comm*>(*comm);
  delete[] comms;
}

void fake_nccl_fail(void* comm, int messages) {
  static_cast<Comm*>(comm)->left = messages;
}

size_t fake_nccl_messages(void* comm) {
  return static_cast<Comm*>(comm)->world->messages;
}

size_t fake_nccl_bytes(void* comm) {
  return static_cast<Comm*>(comm)->world->bytes;
}

int ncclCommCount(void* comm, int* count) {
  *count = static_cast<Comm*>(comm)->ranks;
  return kSuccess;
}

int ncclCommUserRank(void* comm, int* rank) {
  *rank = static_cast<Comm*>(comm)->rank;
  return kSuccess;
}

int ncclCommCuDevice(void*, int* device) {
  *device = 0;
  return kSuccess;
}

int ncclCommGetAsyncError(void* comm, int* result) {
  *result = static_cast<Comm*>(comm)->left < 0 ? kSystemError : kSuccess;
  return kSuccess;
}

int ncclGroupStart() {
  ++t_depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--t_depth > 0) return kSuccess;
  const std::vector<Operation> operations = std::move(t_operations);
  t_operations.clear();
  for (const Operation& of : operations) {
    if (of.from != nullptr) send(of);
  }
  int result = kSuccess;
  for (const Operation& of : operations) {
    if (of.to != nullptr && result == kSuccess) result = receive(of);
  }
  return result;
}

int ncclSend(const void* from, size_t count, int, int peer, void* comm, void*) {
  return add(comm, {.from = from, .bytes = count, .peer = peer});
}

int ncclRecv(void* to, size_t count, int, int peer, void* comm, void*) {
  return add(comm, {.to = to, .bytes = count, .peer = peer});
}

const char* ncclGetErrorString(int result) {
  return result == kSystemError ? "unhandled system error" : "another error";
}

const char* ncclGetLastError(void* comm) {
  return static_cast<Comm*>(comm)->last_error.c_str();
}
}
