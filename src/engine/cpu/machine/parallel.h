// SPDX-License-Identifier: Apache-2.0
//
// A dynamic parallel loop over a process-wide pool of threads.
//
// Why not OpenMP: its runtime is not instrumented, so the thread sanitizer reports races that are
// none, and a second OpenMP runtime in a PyTorch process oversubscribes the cores.
#pragma once

#include <cstdint>
#include <functional>

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

}  // namespace fa3::cpu
