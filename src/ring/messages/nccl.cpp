// SPDX-License-Identifier: Apache-2.0
#include "ring/messages/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "core/macros.h"

namespace fa3::ring {
namespace {

// From nccl.h, whose numbers never change.
constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kBytes = 1;  // ncclUint8

// The functions of every library that a ring was given a path of stay loaded: communicators of it
// live on. Opening it again only counts.
void* open_library(const char* asked) {
  if (asked != nullptr) return dlopen(asked, RTLD_NOW | RTLD_LOCAL);
  if (const char* path = std::getenv("FA3_NCCL")) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  // One that is linked into the program, or that its libraries have loaded for all.
  if (dlsym(RTLD_DEFAULT, "ncclSend") != nullptr) return dlopen(nullptr, RTLD_NOW);
  // The loader knows a library by its name, also one that was loaded by a path.
  for (const char* name : {"libnccl.so.2", "libnccl.so"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool find_all(void* library, NcclFunctions* f) {
  find(library, "ncclGetLastError", &f->last_error);
  f->moves_host_memory = dlsym(library, "fa3_nccl_moves_host_memory") != nullptr;
  return find(library, "ncclCommCount", &f->count) && find(library, "ncclCommUserRank", &f->rank) &&
         find(library, "ncclCommCuDevice", &f->device) &&
         find(library, "ncclCommGetAsyncError", &f->async_error) &&
         find(library, "ncclGroupStart", &f->group_start) &&
         find(library, "ncclGroupEnd", &f->group_end) && find(library, "ncclSend", &f->send) &&
         find(library, "ncclRecv", &f->receive) && find(library, "ncclGetErrorString", &f->error);
}

Status find_nccl(const char* asked, NcclFunctions* nccl) {
  void* library = open_library(asked);
  if (library == nullptr) {
    const char* path = asked != nullptr ? asked : std::getenv("FA3_NCCL");
    return unsupported(
        "ring: expected libnccl, which was not found",
        path != nullptr ? concat(" at ", path) : std::string(),
        "; it comes with NCCL and with the package nvidia-nccl; FA3_NCCL is its path");
  }
  if (find_all(library, nccl)) return {};
  return unsupported(
      "ring: the libnccl that was found lacks functions; expected NCCL 2.7 or later");
}

}  // namespace

Status Communicator::open(const fa3_ring& ring) {
  if (ring.comm == nullptr) {
    return invalid("ring.comm: expected an ncclComm_t, got a null pointer");
  }
  FA3_TRY(find_nccl(ring.library, &nccl_));
  comm_ = ring.comm;
  int failed = kSuccess;
  FA3_TRY(check(nccl_.async_error(comm_, &failed), "asking the communicator"));
  if (failed != kInProgress) FA3_TRY(check(failed, "the communicator"));
  FA3_TRY(check(nccl_.count(comm_, &world_), "counting the ranks"));
  FA3_TRY(check(nccl_.rank(comm_, &rank_), "asking for the rank"));
  return check(nccl_.device(comm_, &device_), "asking for the device");
}

Status Communicator::begin() const {
  return check(nccl_.group_start(), "beginning a group of messages");
}

Status Communicator::send(const void* from, int64_t bytes, int32_t to, void* stream) const {
  if (bytes == 0) return {};
  return check(nccl_.send(from, size_t(bytes), kBytes, to, comm_, stream), "sending");
}

Status Communicator::receive(void* to, int64_t bytes, int32_t from, void* stream) const {
  if (bytes == 0) return {};
  return check(nccl_.receive(to, size_t(bytes), kBytes, from, comm_, stream), "receiving");
}

Status Communicator::end() const {
  return check(nccl_.group_end(), "starting a group of messages");
}

Status Communicator::check(int result, const char* what) const {
  // A communicator that does not block says later how it went.
  while (result == kInProgress) {
    if (const int asked = nccl_.async_error(comm_, &result); asked != kSuccess) result = asked;
  }
  if (result == kSuccess) return {};
  const char* more = nccl_.last_error == nullptr ? nullptr : nccl_.last_error(comm_);
  return {StatusCode::device_error,
          concat("ring: ", what, " failed: NCCL: ", nccl_.error(result),
                 more != nullptr && *more != '\0' ? concat(" (", more, ")") : std::string(),
                 "; abort the communicator, as other ranks may be waiting")};
}

}  // namespace fa3::ring
