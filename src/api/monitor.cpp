// SPDX-License-Identifier: Apache-2.0
#include "api/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iomanip>
#include <map>
#include <vector>

#include "core/error.h"
#include "process/first_use.h"

#ifdef FA3_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace fa3::api {
namespace {

double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// ---- Ranges for a profiler ----

#ifdef FA3_HAS_NVTX
// Null where no profiler is attached.
nvtxDomainHandle_t profiler() {
  static constinit FirstUse<nvtxDomainHandle_t> domain;
  return domain.get([] { return nvtxDomainCreateA("fa3"); });
}

void open_range(const std::string& words) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = words.c_str();
  nvtxDomainRangePushEx(profiler(), &attributes);
}

void close_range() {
  nvtxDomainRangePop(profiler());
}
#else
void* profiler() {
  return nullptr;
}
void open_range(const std::string&) {}
void close_range() {}
#endif

// ---- Sums for a line at the end ----

// Calls of one kind.
struct Sums {
  int64_t calls = 0, timed = 0;
  double seconds = 0, flops = 0, bytes = 0;  // of the timed ones
  bool known = true;
};

// A call on a GPU that nobody has waited for.
struct Pending {
  const EngineClock* clock;
  void* begin;
  void* end;
  Work work;
};

class Totals {
 public:
  void add(const Work& work, double seconds) {
    const NoFork lock;
    forget_parent();
    ++sums_[work.call].calls;
    count(work, seconds);
  }
  void add(Pending pending) {
    const NoFork lock;
    forget_parent();
    ++sums_[pending.work.call].calls;
    if (pending.begin != nullptr && pending.end != nullptr) pending_.push_back(std::move(pending));
    while (!pending_.empty() && resolve_first(false)) {
    }
  }
  // Waits for what is pending.
  void print() {
    const NoFork lock;
    forget_parent();
    while (!pending_.empty() && resolve_first(true)) {
    }
    std::vector<const std::pair<const std::string, Sums>*> lines;
    for (const auto& line : sums_) lines.push_back(&line);
    std::sort(lines.begin(), lines.end(),
              [](const auto* a, const auto* b) { return a->second.seconds > b->second.seconds; });
    constexpr size_t kMost = 100;  // a decoding loop has a kind of call a length
    for (size_t i = 0; i < std::min(lines.size(), kMost); ++i) {
      print_line(lines[i]->first, lines[i]->second);
    }
    if (lines.size() > kMost) {
      std::fprintf(stderr, "fa3: and %zu more kinds of calls\n", lines.size() - kMost);
    }
  }

 private:
  // A forked child counts its own calls: the parent prints those before the fork.
  void forget_parent() {
    if (process_ == getpid()) return;
    process_ = getpid();
    sums_.clear();
    pending_.clear();
  }
  void count(const Work& work, double seconds) {
    Sums& sums = sums_[work.call];
    ++sums.timed;
    sums.seconds += seconds;
    sums.flops += work.flops;
    sums.bytes += work.bytes;
    sums.known &= work.known;
  }
  // False: the GPU has not finished it.
  bool resolve_first(bool wait) {
    const Pending& first = pending_.front();
    double seconds = 0;
    const EngineClock::Reading reading =
        first.clock->between(first.begin, first.end, wait, &seconds);
    if (reading == EngineClock::Reading::not_yet) return false;
    if (reading == EngineClock::Reading::done) count(first.work, seconds);
    pending_.pop_front();
    return true;
  }
  static void print_line(const std::string& call, const Sums& sums) {
    const double each = sums.timed > 0 ? sums.seconds / static_cast<double>(sums.timed) : 0;
    std::string rates;
    const auto digits = std::setprecision(4);
    const auto rate = [&](double amount, double unit, const char* name) {
      if (amount <= 0 || sums.seconds <= 0) return;
      rates += concat(", ", digits, amount / sums.seconds / unit, " ", name);
    };
    if (sums.known) {
      rate(sums.flops, sums.flops > 1e12 * sums.seconds ? 1e12 : 1e9,
           sums.flops > 1e12 * sums.seconds ? "TFLOP/s" : "GFLOP/s");
      rate(sums.bytes, 1e9, "GB/s");
    } else {
      rates = ", lengths in device memory: no rates";
    }
    if (sums.timed < sums.calls) {
      rates += concat(", ", sums.calls - sums.timed, " not timed (captured into a graph)");
    }
    const std::string line =
        concat("fa3: ", sums.calls, " calls, ", digits, 1e3 * each, " ms each", rates, ": ", call);
    std::fprintf(stderr, "%s\n", line.c_str());
  }

  pid_t process_ = getpid();
  std::map<std::string, Sums> sums_;
  std::deque<Pending> pending_;
};

bool asked_for_totals() {
  static constinit FirstUse<bool> asked;
  return asked.get([] {
    const char* value = std::getenv("FA3_MONITOR");
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  });
}

// Never destroyed: calls may come from destructors at the program's end.
Totals& totals() {
  static constinit FirstUse<Totals*> made;
  return *made.get([] {
    auto* const totals_of_program = new Totals;
    std::atexit([] { totals().print(); });
    return totals_of_program;
  });
}

}  // namespace

bool watched() {
  return asked_for_totals() || profiler() != nullptr;
}

Watch::Watch(Work work, const Engine& engine, const std::string& kernel, int device, void* stream)
    : work_(std::move(work)), clock_(engine.clock), device_(device), stream_(stream) {
  work_.call += concat(", ", engine.name, kernel.empty() ? "" : ": ", kernel);
  if (profiler() != nullptr) open_range(work_.call);
  if (!asked_for_totals()) return;
  if (clock_ != nullptr) begin_ = clock_->mark(device_, stream_);
  begin_seconds_ = seconds_now();
}

Watch::~Watch() {
  if (profiler() != nullptr) close_range();
  if (!asked_for_totals()) return;
  const double seconds = seconds_now() - begin_seconds_;
  void* const end = clock_ != nullptr ? clock_->mark(device_, stream_) : nullptr;
  if (!succeeded_) return;
  try {
    if (clock_ == nullptr) {
      totals().add(work_, seconds);
    } else {
      totals().add(Pending{clock_, begin_, end, work_});
    }
  } catch (...) {  // no memory for a count: the call itself is well
  }
}

}  // namespace fa3::api
