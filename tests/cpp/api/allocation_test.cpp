// SPDX-License-Identifier: Apache-2.0
//
// Memory runs out at every allocation of every function of the C ABI, one after the other: the call
// succeeds without it or says OUT_OF_MEMORY, leaks nothing (the address sanitizer looks), and works
// the next time. The library takes memory by `operator new` alone, which this program replaces.
#include <fa3/fa3.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "api/small_calls.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> g_allocations = 0;  // so far, on any thread
std::atomic<int64_t> g_first = kNever;   // the first one that fails
std::atomic<int64_t> g_last = kNever;    // and the last one

void* allocate(size_t bytes) {
  const int64_t number = g_allocations.fetch_add(1);
  if (number >= g_first && number <= g_last) return nullptr;
  return std::malloc(bytes > 0 ? bytes : 1);
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace fa3::test {
namespace {

struct Outcome {
  fa3_status status;
  bool was_short;  // an allocation failed
};

// Runs `call` with allocations [first, last] failing, counted from its beginning.
Outcome run_short(const SmallCall& call, int64_t first, int64_t last) {
  g_allocations = 0;
  g_last = last;
  g_first = first;
  const fa3_status status = call.run();
  g_first = kNever;
  return {status, g_allocations > first};
}

// What is wrong with the outcome, or nullptr.
const char* complaint(const SmallCall& call, const Outcome& outcome) {
  if (outcome.status == call.expected) return nullptr;
  if (!outcome.was_short) return "it failed without need";
  if (outcome.status != FA3_OUT_OF_MEMORY) return "it failed with another status";
  if (std::strstr(fa3_last_error(), "memory") == nullptr) return "its sentence says no memory";
  return nullptr;
}

class OutOfMemory : public testing::TestWithParam<SmallCall> {};

#if !defined(__SANITIZE_THREAD__)  // which does not follow threads into a forked child
// In processes whose first call it is: what is made once must survive a failed attempt. Stands
// before the test that calls in this process.
TEST_P(OutOfMemory, in_the_first_call_of_a_process_is_a_status) {
  const SmallCall& call = GetParam();
  bool was_short = true;
  for (int64_t n = 0; was_short; ++n) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const Outcome outcome = run_short(call, n, n);
      bool good = complaint(call, outcome) == nullptr && call.run() == call.expected;
#if defined(__SANITIZE_ADDRESS__)
      good = good && __lsan_do_recoverable_leak_check() == 0;
#endif
      _exit(!good ? 1 : outcome.was_short ? 2 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "allocation " << n << ": signal " << WTERMSIG(status);
    ASSERT_NE(WEXITSTATUS(status), 1) << "allocation " << n;
    was_short = WEXITSTATUS(status) == 2;
  }
}
#endif

TEST_P(OutOfMemory, at_any_allocation_is_a_status) {
  const SmallCall& call = GetParam();
  ASSERT_EQ(call.run(), call.expected) << fa3_last_error();
  const std::vector<float> right = call.results();
  for (const bool once : {true, false}) {
    for (int64_t n = 0;; ++n) {
      ASSERT_LT(n, 10000);
      const Outcome outcome = run_short(call, n, once ? n : kNever);
      ASSERT_EQ(complaint(call, outcome), nullptr) << "allocation " << n << ": " << outcome.status;
      if (outcome.status == FA3_OK) {
        ASSERT_EQ(call.results(), right) << "allocation " << n;
      }
      ASSERT_EQ(call.run(), call.expected) << "after allocation " << n << ": " << fa3_last_error();
      ASSERT_EQ(call.results(), right) << "after allocation " << n;
      if (!outcome.was_short) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OutOfMemory, testing::ValuesIn(small_calls()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fa3::test
