// SPDX-License-Identifier: Apache-2.0
#include "api/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
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

// A call: what it does, who does it, and in how much workspace.
struct Call {
  Work work;
  const Engine* engine;
  int device;
  int64_t workspace;
};

// Calls alike.
struct Sums {
  const char* kind;
  DType dtype;
  const Engine* engine;
  int device;
  int64_t calls = 0, timed = 0;
  double seconds = 0, flops = 0, bytes = 0;  // of the timed ones
  double memory = 0;                         // of the largest one: operands and workspace
  int64_t workspace = 0;                     // likewise
  bool known = true;
};

// A call on a GPU that nobody has waited for.
struct Pending {
  void* begin;
  void* end;
  Call call;
};

class Totals {
 public:
  void add(const Call& call, double seconds) {
    const NoFork lock;
    forget_parent();
    ++sums_of(call).calls;
    count(call, seconds);
  }
  void add(Pending pending) {
    const NoFork lock;
    forget_parent();
    ++sums_of(pending.call).calls;
    if (pending.begin != nullptr && pending.end != nullptr) pending_.push_back(std::move(pending));
    resolve();
  }
  std::map<std::string, Sums> so_far() {
    const NoFork lock;
    forget_parent();
    resolve();
    return sums_;
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
    constexpr size_t kMostLines = 100;
    for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) {
      print_line(lines[i]->first, lines[i]->second);
    }
    if (lines.size() > kMostLines) {
      std::fprintf(stderr, "fa3: and %zu more kinds of calls\n", lines.size() - kMostLines);
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
  // A decoding loop has other words for each length: past kMost, calls of a kind share a line.
  Sums& sums_of(const Call& call) {
    constexpr size_t kMost = 1000;
    const Work& work = call.work;
    const Sums none{
        .kind = work.kind, .dtype = work.dtype, .engine = call.engine, .device = call.device};
    const auto found = sums_.find(work.call);
    if (found != sums_.end()) return found->second;
    if (sums_.size() < kMost) return sums_.emplace(work.call, none).first->second;
    const std::string others =
        concat(work.kind, " ", name_of(work.dtype), " of other shapes, ", call.engine->name);
    return sums_.emplace(others, none).first->second;
  }
  void count(const Call& call, double seconds) {
    const Work& work = call.work;
    Sums& sums = sums_of(call);
    sums.workspace = std::max(sums.workspace, call.workspace);
    sums.memory = std::max(sums.memory, work.bytes + static_cast<double>(call.workspace));
    ++sums.timed;
    sums.seconds += seconds;
    sums.flops += work.flops;
    sums.bytes += work.bytes;
    sums.known &= work.known;
  }
  void resolve() {
    while (!pending_.empty() && resolve_first(false)) {
    }
  }
  // False: the GPU has not finished it.
  bool resolve_first(bool wait) {
    const Pending& first = pending_.front();
    double seconds = 0;
    const EngineClock::Reading reading =
        first.call.engine->clock->between(first.begin, first.end, wait, &seconds);
    if (reading == EngineClock::Reading::not_yet) return false;
    if (reading == EngineClock::Reading::done) count(first.call, seconds);
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
    if (asked_for_totals()) std::atexit([] { totals().print(); });
    return totals_of_program;
  });
}

enum class Counting { as_environment_says, on, off };
constinit std::atomic<Counting> g_counting = Counting::as_environment_says;

bool counting() {
  const Counting now = g_counting.load(std::memory_order_relaxed);
  return now == Counting::as_environment_says ? asked_for_totals() : now == Counting::on;
}

// Seconds that the device's limits leave as the least for the sums; 0: not known.
double least_seconds(const Sums& sums) {
  if (sums.engine->limits == nullptr || !sums.known) return 0;
  const EngineLimits limits = sums.engine->limits(sums.dtype, sums.device);
  const double of_flops = limits.flops > 0 ? sums.flops / limits.flops : 0;
  const double of_bytes = limits.bytes > 0 ? sums.bytes / limits.bytes : 0;
  return std::max(of_flops, of_bytes);
}

// Names and words hold nothing that JSON would escape.
std::string row_of_json(const std::string& call, const Sums& sums) {
  return concat(std::setprecision(12), R"({"kind": ")", sums.kind, R"(", "engine": ")",
                sums.engine->name, R"(", "call": ")", call, R"(", "calls": )", sums.calls,
                R"(, "timed": )", sums.timed, R"(, "known": )", sums.known ? "true" : "false",
                R"(, "seconds": )", sums.seconds, R"(, "flops": )", sums.flops, R"(, "bytes": )",
                sums.bytes, R"(, "least_seconds": )", least_seconds(sums), R"(, "workspace": )",
                sums.workspace, R"(, "memory": )", sums.memory, "}");
}

}  // namespace

bool watched() {
  return counting() || profiler() != nullptr;
}

void count_calls(bool counts) {
  g_counting = counts ? Counting::on : Counting::off;
}

std::string text_of_sums() {
  std::string text;
  for (const auto& [call, sums] : totals().so_far()) {
    text += (text.empty() ? "" : ",\n") + row_of_json(call, sums);
  }
  return "[" + text + "]";
}

Watch::Watch(Work work, const Engine& engine, const std::string& kernel, int64_t workspace,
             int device, void* stream)
    : work_(std::move(work)),
      engine_(&engine),
      workspace_bytes_(workspace),
      counts_(counting()),
      device_(device),
      stream_(stream) {
  work_.call += concat(", ", engine.name, kernel.empty() ? "" : ": ", kernel);
  if (profiler() != nullptr) open_range(work_.call);
  if (!counts_) return;
  if (engine.clock != nullptr) begin_ = engine.clock->mark(device_, stream_);
  begin_seconds_ = seconds_now();
}

Watch::~Watch() {
  if (profiler() != nullptr) close_range();
  if (!counts_) return;
  const double seconds = seconds_now() - begin_seconds_;
  const EngineClock* const clock = engine_->clock;
  void* const end = clock != nullptr ? clock->mark(device_, stream_) : nullptr;
  if (!succeeded_) return;
  try {
    Call call{std::move(work_), engine_, device_, workspace_bytes_};
    if (clock == nullptr) {
      totals().add(call, seconds);
    } else {
      totals().add(Pending{begin_, end, std::move(call)});
    }
  } catch (...) {  // no memory for a count: the call itself is well
  }
}

}  // namespace fa3::api
