// SPDX-License-Identifier: Apache-2.0
//
// Callers that the library did not choose: many at once, a child forked between their calls, the
// process's end in the middle of one, destructors after main().
#include <fa3/fa3.h>
#include <fa3/tensor.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "api/small_calls.h"

namespace fa3::test {
namespace {

constexpr int kCallers = 8;

// Every caller has calls and memory of its own; their results may not differ by a bit.
TEST(Callers, at_once_get_what_one_gets) {
  std::vector<std::vector<float>> right;
  for (const SmallCall& call : small_calls()) {
    ASSERT_EQ(call.run(), call.expected) << fa3_last_error();
    right.push_back(call.results());
  }
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      const std::vector<SmallCall> calls = small_calls();
      for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < calls.size(); ++i) {
          ASSERT_EQ(calls[i].run(), calls[i].expected) << calls[i].name << ": " << fa3_last_error();
          ASSERT_EQ(*fa3_last_error() == '\0', calls[i].expected == FA3_OK) << fa3_last_error();
          ASSERT_EQ(calls[i].results(), right[i]) << calls[i].name;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow threads into a forked child

// Threads that call without end, until the process does.
void start_callers(int count) {
  for (int caller = 0; caller < count; ++caller) {
    std::thread([calls = small_calls()] {
      for (;;) {
        for (const SmallCall& call : calls) call.run();
      }
    }).detach();
  }
}

int all_calls_work() {
  for (const SmallCall& call : small_calls()) {
    if (call.run() != call.expected) return 1;
  }
  return 0;
}

// Runs body() in a child that has 60 seconds; what it returns, or 128 + the signal that ended it.
template <class Body>
int in_a_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#if !defined(__SANITIZE_ADDRESS__)  // whose allocator a forked child can find locked
TEST(Callers, may_fork_while_others_call) {
  EXPECT_EQ(in_a_child([] {
              start_callers(3);
              for (int i = 0; i < 30; ++i) {
                std::this_thread::sleep_for(std::chrono::microseconds(100 * (i % 7)));
                if (const int failed = in_a_child(all_calls_work)) return failed;
              }
              return 0;
            }),
            0);
}

// A call of a microsecond, so that most of its time goes into being counted.
fa3_status call_with_one_key() {
  float q[8] = {}, k[8] = {}, v[8] = {}, o[8];
  fa3_forward_params params;
  fa3_forward_params_init(&params);
  params.q = contiguous(q, FA3_FLOAT32, {1, 1, 1, 8});
  params.k = contiguous(k, FA3_FLOAT32, {1, 1, 1, 8});
  params.v = contiguous(v, FA3_FLOAT32, {1, 1, 1, 8});
  params.o = contiguous(o, FA3_FLOAT32, {1, 1, 1, 8});
  params.options.num_threads = 1;
  alignas(256) std::byte workspace[1 << 18];
  return fa3_forward(&params, workspace, sizeof(workspace), nullptr);
}

// FA3_MONITOR is read once in a process: in a program of its own.
TEST(Callers, may_fork_while_others_are_counted) {
  if (std::getenv("FA3_MONITOR") == nullptr) {
    EXPECT_EQ(in_a_child([] {
                setenv("FA3_MONITOR", "1", 1);
                execl("/proc/self/exe", "fa3_callers_tests", "--gtest_brief=1",
                      "--gtest_filter=Callers.may_fork_while_others_are_counted", nullptr);
                return 1;
              }),
              0);
    return;
  }
  for (int caller = 0; caller < 3; ++caller) {
    std::thread([] {
      for (;;) call_with_one_key();
    }).detach();
  }
  for (int i = 0; i < 1000; ++i) {
    const int failed = in_a_child([] {
      alarm(20);
      return call_with_one_key() == FA3_OK ? 0 : 1;
    });
    ASSERT_EQ(failed, 0) << "fork " << i;
  }
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);  // while the others still call
}
#endif

// In processes of their own, where the first calls are at work when the fork comes.
TEST(Callers, may_fork_while_others_make_their_first_call) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(in_a_child([i] {
                start_callers(3);
                std::this_thread::sleep_for(std::chrono::microseconds(3 * i));
                return in_a_child(all_calls_work);
              }),
              0);
  }
}

TEST(Callers, may_fork_twice) {
  EXPECT_EQ(in_a_child([] {
              return all_calls_work() +
                     in_a_child([] { return all_calls_work() + in_a_child(all_calls_work); });
            }),
            0);
}

TEST(Callers, may_end_the_process_while_others_call) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(in_a_child([i]() -> int {
                start_callers(3);
                std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
                std::exit(0);  // runs destructors and handlers while they call
              }),
              0);
  }
}

// A call from the destructor of an object that is as old as the process, or as the thread.
struct CallsAtItsEnd {
  ~CallsAtItsEnd() {
    if (!armed) return;
    const bool works = all_calls_work() == 0 && fa3_forward_supported(nullptr) != FA3_OK &&
                       std::strstr(fa3_last_error(), "null") != nullptr;
    if (!works) _exit(3);
  }
  bool armed = false;
};

TEST(Callers, may_be_destructors) {
  EXPECT_EQ(in_a_child([]() -> int {
              static CallsAtItsEnd last;  // older than anything that the calls make
              last.armed = true;
              thread_local CallsAtItsEnd last_of_main;
              last_of_main.armed = true;
              std::thread([] {
                thread_local CallsAtItsEnd last_of_thread;
                last_of_thread.armed = true;
                all_calls_work();
              }).join();
              all_calls_work();
              std::exit(0);
            }),
            0);
}

#endif

}  // namespace
}  // namespace fa3::test
