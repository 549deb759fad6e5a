// SPDX-License-Identifier: Apache-2.0
#include "process/first_use.h"

#include <pthread.h>

#include <mutex>

namespace fa3 {
namespace {

constinit std::mutex g_making;
constinit thread_local int g_depth = 0;  // this thread has the mutex so often

void lock() {
  if (g_depth++ == 0) g_making.lock();
}
void unlock() {
  if (--g_depth == 0) g_making.unlock();
}

// As the library is loaded, before the statics of C++ and so before anybody can call it.
[[gnu::constructor(101)]] void watch_forks() {
  pthread_atfork(lock, unlock, unlock);
}

}  // namespace

NoFork::NoFork() {
  lock();
}
NoFork::~NoFork() {
  unlock();
}

}  // namespace fa3
