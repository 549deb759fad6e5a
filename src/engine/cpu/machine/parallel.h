// SPDX-License-Identifier: Apache-2.0
//
// A dynamic parallel loop over a process-wide pool of threads.
//
// Why not OpenMP: its runtime is not instrumented, so the thread sanitizer reports races that are
// none, and a second OpenMP runtime in a PyTorch process oversubscribes the cores.
#pragma once

#include <cstdint>
#include <functional>

#include "core/workspace.h"

namespace fa3::cpu {

// Calls body(task, worker) once for every task in [0, num_tasks), on at most num_threads threads of
// which the caller is one (worker 0); 0 <= worker < num_threads names the thread's scratch memory.
// Tasks start in ascending order, each on the first thread that is free. The caller must put
// nothing into the result that depends on which worker ran a task. While another host
// thread is using the pool, tasks run on the calling thread. Tasks run in the default
// floating-point environment (float_environment.h), whatever the caller's is. Returns when every
// task is done.
void parallel_for(int64_t num_tasks, int num_threads,
                  const std::function<void(int64_t task, int worker)>& body);

// Equal slices of a workspace, one for each worker of parallel_for.
struct ThreadMemory {
  std::byte* first = nullptr;
  int64_t bytes_each = 0;

  WorkspaceAllocator operator[](int worker) const {
    return WorkspaceAllocator(first + worker * bytes_each);
  }
};

// `describe` carves what one worker needs, here only to count it.
template <class Describe>
ThreadMemory take_thread_memory(WorkspaceAllocator& allocator, int num_threads,
                                Describe&& describe) {
  const int64_t bytes_each = bytes_of(describe);
  return {allocator.take<std::byte>(num_threads, bytes_each), bytes_each};
}

}  // namespace fa3::cpu
