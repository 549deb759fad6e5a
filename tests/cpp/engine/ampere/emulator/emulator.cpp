// SPDX-License-Identifier: Apache-2.0
#include "emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda_words.h"

fa3::emulator::Index threadIdx, blockIdx, gridDim;

namespace fa3::emulator {
namespace {

struct Copy {
  uint32_t smem;
  const void* global;
  int bytes, filled;
};

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool finished = false, waits = false;
  std::string waits_for;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

struct Barrier {
  int come = 0, threads = 0;
  std::vector<int> waiting;
};

struct Meeting {
  std::string instruction;
  void* lanes[kLanes];
  int come = 0;
};

struct Cta {
  std::vector<Fibre> fibres;
  std::vector<Meeting> meetings;  // of each warp
  std::map<int, Barrier> barriers;
  std::vector<unsigned char> memory;
  unsigned char* smem = nullptr;
  std::mt19937 random;
  ucontext_t scheduler;
  const std::function<void()>* body = nullptr;
  int running = 0;
  std::string error;
};

Cta* cta = nullptr;
constexpr size_t kStackBytes = 128 << 10;

void enter() {
  try {
    (*cta->body)();
  } catch (const std::exception& e) {
    cta->error = e.what();
  }
  cta->fibres[size_t(cta->running)].finished = true;
  swapcontext(&cta->fibres[size_t(cta->running)].context, &cta->scheduler);
}

void switch_away() {
  swapcontext(&cta->fibres[size_t(cta->running)].context, &cta->scheduler);
}

void wait_for(const std::string& what) {
  Fibre& own = cta->fibres[size_t(cta->running)];
  own.waits = true;
  own.waits_for = what;
  switch_away();
}

void copy(const Copy& c) {
  std::memcpy(cta->smem + c.smem, c.global, size_t(c.filled));
  std::memset(cta->smem + c.smem + c.filled, 0, size_t(c.bytes - c.filled));
}

}  // namespace

void run_cta(int threads, int smem_bytes, unsigned seed, const std::function<void()>& body) {
  Cta mine;
  mine.fibres.resize(size_t(threads));
  mine.meetings.resize(size_t(threads / kLanes));
  mine.memory.assign(size_t(smem_bytes) + 2048, 0xff);
  mine.smem = mine.memory.data() + (1024 - reinterpret_cast<uintptr_t>(mine.memory.data()) % 1024);
  mine.random.seed(seed);
  mine.body = &body;
  cta = &mine;
  for (Fibre& f : mine.fibres) {
    f.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&f.context);
    f.context.uc_stack = {.ss_sp = f.stack.get(), .ss_flags = 0, .ss_size = kStackBytes};
    makecontext(&f.context, enter, 0);
  }
  const int warps = threads / kLanes;
  for (;;) {
    const auto able = [&](int t) {
      return !mine.fibres[size_t(t)].finished && !mine.fibres[size_t(t)].waits;
    };
    // A warp at random that can go on; its lanes until each waits for something.
    const int first = int(mine.random() % unsigned(warps));
    bool some = false;
    for (int w = 0; w < warps && !some; ++w) {
      const int warp = (first + w) % warps;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int t = warp * kLanes + lane;
        if (!able(t)) continue;
        some = true;
        mine.running = t;
        threadIdx.x = unsigned(t);
        swapcontext(&mine.scheduler, &mine.fibres[size_t(t)].context);
        if (!mine.error.empty()) throw std::runtime_error(mine.error);
      }
    }
    if (some) continue;
    for (size_t t = 0; t < mine.fibres.size(); ++t) {
      if (mine.fibres[t].finished) continue;
      throw std::runtime_error("thread " + std::to_string(t) + " waits for ever for " +
                               mine.fibres[t].waits_for);
    }
    cta = nullptr;
    return;
  }
}

unsigned char* shared_memory() {
  return cta->smem;
}

void yield() {
  switch_away();
}

static void come(int id, int threads, bool waits) {
  if (threads == 0) threads = int(cta->fibres.size());
  Barrier& b = cta->barriers[id];
  if (b.come > 0 && b.threads != threads) throw std::runtime_error("barrier of two sizes");
  b.threads = threads;
  const int own = cta->running;
  if (std::ranges::find(b.waiting, own) != b.waiting.end()) {
    throw std::runtime_error("a thread comes twice to barrier " + std::to_string(id));
  }
  if (waits) b.waiting.push_back(own);
  if (++b.come == threads) {
    for (int t : b.waiting) cta->fibres[size_t(t)].waits = false;
    b = {};
    return;
  }
  if (waits) wait_for("barrier " + std::to_string(id));
}

void barrier_sync(int id, int threads) {
  come(id, threads, true);
}
void barrier_arrive(int id, int threads) {
  come(id, threads, false);
}

void meet(const char* instruction, void* mine,
          const std::function<void(void* const* lanes)>& work) {
  Meeting& m = cta->meetings[size_t(cta->running / kLanes)];
  if (m.come == 0) m.instruction = instruction;
  if (m.instruction != instruction) {
    throw std::runtime_error(std::string("lanes meet in ") + instruction + " and " + m.instruction);
  }
  m.lanes[cta->running % kLanes] = mine;
  if (++m.come < kLanes) {
    wait_for(instruction);
    return;
  }
  m.come = 0;
  work(m.lanes);
  const int first = cta->running / kLanes * kLanes;
  for (int t = first; t < first + kLanes; ++t) {
    if (t != cta->running) cta->fibres[size_t(t)].waits = false;
  }
}

void copy_later(uint32_t smem, const void* global, int bytes, int filled) {
  cta->fibres[size_t(cta->running)].open.push_back({smem, global, bytes, filled});
}
void end_copy_group() {
  Fibre& own = cta->fibres[size_t(cta->running)];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}
void wait_for_copies(int newest_groups) {
  Fibre& own = cta->fibres[size_t(cta->running)];
  while (int(own.groups.size()) > newest_groups) {
    std::ranges::for_each(own.groups.front(), copy);
    own.groups.pop_front();
  }
}

}  // namespace fa3::emulator
