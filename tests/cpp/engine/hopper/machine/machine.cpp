// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "cuda_words.h"

fa3::machine::Index threadIdx, blockIdx, gridDim;

namespace fa3::machine {
namespace {

constexpr int kThreadsPerWarp = 32;
constexpr int kWarpsPerWarpgroup = 4;
constexpr int kRowsPerWarp = 16;
constexpr int kProductDepth = 16;
constexpr int64_t kMostSwitches = 20'000'000;
constexpr size_t kStackBytes = 256 << 10;

struct ProtocolError : std::runtime_error {
  using runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_convertible_v<decltype(part), std::string>) {
      text += part;
    } else {
      text += std::to_string(part);
    }
  };
  (add(parts), ...);
  throw ProtocolError(text);
}

// What a piece of shared memory holds: rows of a tensor.
struct Content {
  const void* tensor = nullptr;  // null: nothing that may be read
  int row = 0, column = 0, head = 0, batch = 0;
};

struct Granule {
  Content content;
  bool arriving = false;
  int readers = 0;
};

struct Barrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;      // expected, not yet arrived
  int64_t completed = 0;  // phases
};

struct NamedBarrier {
  int arrived = 0, synced = 0;
  int64_t completed = 0;
};

struct Group {
  std::optional<Product> product;
  std::vector<int> granules;
};

struct Warp {
  int number = 0;
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  std::function<bool()> can_go_on;  // empty: it can
  std::string waits_for;
  bool finished = false;
  // The phase of each barrier that this warp last saw completed; and the one it waits for now.
  std::map<uint32_t, int64_t> seen;
  uint32_t awaited_barrier = 0;
  int64_t awaited_phase = 0;
  Group group;
  std::deque<Group> groups;
  int releases = 0, turns_given = 0;
};

// Something that the copy engine will have done at some time.
struct Event {
  std::function<void()> happen;
};

class Machine {
 public:
  Machine(const Setting& setting, int warps, const std::function<void()>& body)
      : setting_(setting), body_(body), random_(setting.seed) {
    for (int w = 0; w < warps; ++w) {
      warps_.push_back(std::make_unique<Warp>());
      warps_.back()->number = w;
    }
    outcome_.products.resize(warps);
  }

  Outcome run();

  Warp& self() { return *running_; }
  const Setting& setting() const { return setting_; }
  Outcome& outcome() { return outcome_; }
  Barrier& barrier(uint32_t address) { return barriers_[address]; }
  NamedBarrier& named(int id) { return named_[id]; }
  bool producing() { return self().number < kWarpsPerWarpgroup; }
  bool broken(Fault fault) const { return setting_.fault == fault; }

  // Others may go first.
  void yield() {
    if (uniform_(random_) < setting_.pace.interruption) switch_away();
  }
  void wait_until(const std::string& what, const std::function<bool()>& can_go_on) {
    yield();
    if (can_go_on()) return;
    self().can_go_on = can_go_on;
    self().waits_for = what;
    switch_away();
    self().can_go_on = nullptr;
  }
  void later(std::function<void()> happen) { events_.push_back({std::move(happen)}); }

  void maybe_complete(uint32_t address) {
    Barrier& b = barrier(address);
    if (b.pending < 0) fail("barrier ", address, " got more arrivals than it counts");
    if (b.pending != 0 || b.bytes != 0) return;
    b.pending = b.arrivals;
    ++b.completed;
    for (const auto& warp : warps_) {
      if (warp->can_go_on && warp->awaited_barrier == address &&
          b.completed - 1 > warp->awaited_phase) {
        fail("phases alias: barrier ", address, " ran past warp ", warp->number);
      }
    }
  }

  Granule& granule(uint32_t address) {
    const uint32_t index = (address - kSmemBase) / kGranule;
    if (address < kSmemBase || index >= granules_.size()) fail("address ", address, " is outside");
    return granules_[index];
  }
  Granule& granule_at(int index) { return granules_[index]; }
  int index_of(uint32_t address) {
    granule(address);
    return int((address - kSmemBase) / kGranule);
  }

  // Someone starts to read filled memory.
  const Content& begin_read(uint32_t address, std::vector<int>* held) {
    Granule& g = granule(address);
    if (g.arriving || g.content.tensor == nullptr) {
      fail("read before it was filled: address ", address, " by warp ", self().number);
    }
    ++g.readers;
    held->push_back(index_of(address));
    return g.content;
  }
  void end_read(std::vector<int>* held) {
    for (int index : *held) --granules_[index].readers;
    held->clear();
  }
  void require_unread(uint32_t address, const char* by) {
    const Granule& g = granule(address);
    if (g.readers > 0) fail("overwritten while it is read: address ", address, " by ", by);
    if (g.arriving) fail("overwritten while a copy arrives: address ", address, " by ", by);
  }

  std::mt19937& random() { return random_; }

 private:
  static void enter();
  void switch_away() {
    Warp& warp = self();
    swapcontext(&warp.context, &scheduler_);
    running_ = &warp;
    threadIdx.x = unsigned(warp.number * kThreadsPerWarp);
  }
  double weight(const Warp& warp) const {
    if (warp.number < kWarpsPerWarpgroup) return setting_.pace.producer;
    return setting_.pace.consumers * (warp.number == setting_.pace.slow_warp ? 0.01 : 1);
  }
  bool step();

  Setting setting_;
  std::function<void()> body_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::map<uint32_t, Barrier> barriers_;
  std::map<int, NamedBarrier> named_;
  std::vector<Granule> granules_ = std::vector<Granule>(kSmemBytes / kGranule);
  std::vector<Event> events_;
  ucontext_t scheduler_;
  Warp* running_ = nullptr;
  Outcome outcome_;
};

Machine* the_machine = nullptr;

void Machine::enter() {
  Machine& machine = *the_machine;
  try {
    machine.body_();
    if (!machine.self().groups.empty() || machine.self().group.product) {
      fail("warp ", machine.self().number, " left with products in flight");
    }
  } catch (const ProtocolError& error) {
    machine.outcome_.error = error.what();
  }
  machine.self().finished = true;
}

// Lets one actor do something; false if nobody is left.
bool Machine::step() {
  std::vector<Warp*> able;
  std::vector<double> weights;
  bool anybody = false;
  for (const auto& warp : warps_) {
    if (warp->finished) continue;
    anybody = true;
    if (warp->can_go_on && !warp->can_go_on()) continue;
    able.push_back(warp.get());
    weights.push_back(weight(*warp));
  }
  if (!anybody && events_.empty()) return false;
  if (able.empty() && events_.empty()) {
    std::string text = "deadlock:";
    for (const auto& warp : warps_) {
      if (!warp->finished) {
        text += " warp " + std::to_string(warp->number) + " waits for " + warp->waits_for + ";";
      }
    }
    fail(text);
  }
  if (!events_.empty()) weights.push_back(setting_.pace.engines);
  const size_t choice = std::discrete_distribution<size_t>(weights.begin(), weights.end())(random_);
  if (++outcome_.switches > kMostSwitches) fail("nobody comes to an end");
  if (choice == able.size()) {
    const size_t which = random_() % events_.size();
    const Event event = std::move(events_[which]);
    events_.erase(events_.begin() + ptrdiff_t(which));
    event.happen();
    return true;
  }
  running_ = able[choice];
  threadIdx.x = unsigned(running_->number * kThreadsPerWarp);
  swapcontext(&scheduler_, &running_->context);
  return true;
}

Outcome Machine::run() {
  for (const auto& warp : warps_) {
    getcontext(&warp->context);
    warp->context.uc_stack.ss_sp = warp->stack.get();
    warp->context.uc_stack.ss_size = kStackBytes;
    warp->context.uc_link = &scheduler_;
    makecontext(&warp->context, enter, 0);
  }
  try {
    while (outcome_.error.empty() && step()) {
    }
  } catch (const ProtocolError& error) {
    outcome_.error = error.what();
  }
  return outcome_;
}

Machine& here() {
  return *the_machine;
}

TensorMap decoded(const CUtensorMap& map) {
  TensorMap known;
  std::memcpy(&known, &map, sizeof(known));
  return known;
}

// Fields of a matrix descriptor (tile/layout.h).
uint32_t start_of(uint64_t descriptor) {
  return uint32_t(descriptor & 0x3fff) << 4;
}
uint32_t slab_distance(uint64_t descriptor) {
  return uint32_t(descriptor >> 16 & 0x3fff) << 4;
}
int row_bytes_of(uint64_t descriptor) {
  return descriptor >> 62 == 1 ? 128 : 64;
}
uint32_t row_start(uint32_t address) {
  return address / kGranule * kGranule;
}

// Reads `rows` rows of one slab; they must follow each other in one tensor. Returns the first.
Content read_rows(uint32_t address, int rows, int row_bytes, std::vector<int>* held) {
  const Content first = here().begin_read(address, held);
  for (int offset = kGranule; offset < rows * row_bytes; offset += kGranule) {
    const Content& next = here().begin_read(address + offset, held);
    if (next.tensor != first.tensor || next.head != first.head || next.batch != first.batch ||
        next.column != first.column || next.row != first.row + offset / row_bytes) {
      fail("a tile of mixed origin at address ", address);
    }
  }
  return first;
}

void grow(Group* group, const Product& part, int step) {
  if (!group->product) {
    group->product = part;
  } else {
    Product& p = *group->product;
    if (p.kind != part.kind || p.q_row != part.q_row || p.q_head != part.q_head ||
        p.key_row != part.key_row || p.kv_head != part.kv_head || p.batch != part.batch) {
      fail("one product of two tiles, by warp ", here().self().number);
    }
  }
  group->product->extent += step;
}

}  // namespace

Outcome run_block(const Setting& setting, int warps, unsigned blocks,
                  const std::function<void()>& body) {
  Machine machine(setting, warps, body);
  the_machine = &machine;
  blockIdx.x = 0;
  gridDim.x = blocks;
  Outcome outcome = machine.run();
  the_machine = nullptr;
  return outcome;
}

void sync_block() {
  // All warps of the block; a barrier like the named ones, which give no turn.
  Machine& m = here();
  NamedBarrier& b = m.named(-1);
  const int64_t phase = b.completed;
  const int everybody = int(m.outcome().products.size());
  if (++b.arrived == everybody) {
    b.arrived = 0;
    ++b.completed;
  }
  m.wait_until("the block", [&b, phase] { return b.completed > phase; });
}

int draw(int* counter, int count) {
  here().yield();
  *counter += int(here().random()() % 3);  // other blocks draw too
  const int ticket = *counter;
  *counter += count;
  here().outcome().drawn.push_back(ticket);
  return ticket;
}

void barrier_init(uint32_t address, uint32_t arrivals) {
  Machine& m = here();
  int count = int(arrivals);
  if (m.setting().kv.is_empty(address)) {
    if (m.broken(Fault::kOneArrivalTooFew)) --count;
    if (m.broken(Fault::kOneArrivalTooMany)) ++count;
  }
  m.barrier(address) = {.arrivals = count, .pending = count};
}

void barrier_arrive(uint32_t address, int64_t bytes) {
  Machine& m = here();
  m.yield();
  if (m.setting().kv.is_empty(address)) {
    if (m.broken(Fault::kReleaseBeforeRead)) return;  // done long ago
    constexpr int kForgotten = 3;
    if (m.broken(Fault::kLostRelease) && m.self().number == kWarpsPerWarpgroup &&
        m.self().releases++ == kForgotten) {
      return;
    }
  }
  Barrier& b = m.barrier(address);
  if (b.arrivals == 0) fail("barrier ", address, " was not initialised");
  if (m.broken(Fault::kTooFewBytes) && m.setting().kv.is_full(address)) bytes /= 2;
  b.bytes += bytes;
  --b.pending;
  m.maybe_complete(address);
}

namespace {

uint32_t parity_meant(uint32_t address, uint32_t parity) {
  Machine& m = here();
  const bool flipped = (m.broken(Fault::kProducerPhase) && m.setting().kv.is_empty(address)) ||
                       (m.broken(Fault::kConsumerPhase) && m.setting().kv.is_full(address));
  return flipped ? parity ^ 1 : parity;
}

bool has_passed(uint32_t address, uint32_t parity) {
  return uint32_t(here().barrier(address).completed & 1) != parity;
}

// This warp knows now that a phase is over: the one after the last it knew of, or that one again.
void note_passed(uint32_t address) {
  Machine& m = here();
  const int64_t phase = m.barrier(address).completed - 1;
  const auto [known, first] = m.self().seen.try_emplace(address, -1);
  if (phase > known->second + 1) {
    fail("phases alias: warp ", m.self().number, " missed a phase of barrier ", address);
  }
  const bool news = phase > known->second;
  known->second = phase;
  if (news && m.broken(Fault::kReleaseBeforeRead) && m.setting().kv.is_full(address)) {
    const uint32_t empty = address - m.setting().kv.first_full + m.setting().kv.first_empty;
    --m.barrier(empty).pending;
    m.maybe_complete(empty);
  }
}

}  // namespace

bool barrier_passed(uint32_t address, uint32_t parity) {
  here().yield();
  const bool passed = has_passed(address, parity_meant(address, parity));
  if (passed) note_passed(address);
  return passed;
}

void barrier_wait(uint32_t address, uint32_t parity) {
  Machine& m = here();
  const uint32_t meant = parity_meant(address, parity);
  m.self().awaited_barrier = address;
  m.self().awaited_phase = m.barrier(address).completed;
  m.wait_until("barrier " + std::to_string(address),
               [address, meant] { return has_passed(address, meant); });
  m.self().awaited_barrier = 0;
  note_passed(address);
}

namespace {

void arrive_named(int id, int threads, bool syncs) {
  NamedBarrier& b = here().named(id);
  b.arrived += kThreadsPerWarp;
  b.synced += syncs ? kThreadsPerWarp : 0;
  if (b.arrived < threads) return;
  if (b.arrived > threads || b.synced != threads / 2) {
    fail("named barrier ", id, ": a turn was given to somebody who did not ask for it");
  }
  b = {.completed = b.completed + 1};
}

}  // namespace

void named_arrive(int id, int threads) {
  Machine& m = here();
  m.yield();
  const int given = m.self().turns_given++;
  if (given == 0 && m.broken(Fault::kNoFirstTurn)) return;
  arrive_named(id, threads, false);
  if (given == 2 && m.broken(Fault::kTurnGivenTwice)) arrive_named(id, threads, false);
}

void named_sync(int id, int threads) {
  Machine& m = here();
  NamedBarrier& b = m.named(id);
  m.yield();
  const int64_t phase = b.completed;
  arrive_named(id, threads, true);
  m.wait_until("its turn", [&b, phase] { return b.completed > phase; });
}

void load(uint32_t smem, const CUtensorMap& map, int column, int row, int head, int batch,
          uint32_t barrier) {
  Machine& m = here();
  m.yield();
  const TensorMap known = decoded(map);
  const int bytes = known.box_rows * known.row_bytes;
  for (int offset = 0; offset < bytes; offset += kGranule) {
    m.require_unread(smem + offset, "a load");
    m.granule(smem + offset).arriving = true;
  }
  m.later([=, &m] {
    for (int offset = 0; offset < bytes; offset += kGranule) {
      Granule& g = m.granule(smem + offset);
      g.arriving = false;
      g.content = {.tensor = known.tensor,
                   .row = row + offset / known.row_bytes,
                   .column = column,
                   .head = head,
                   .batch = batch};
    }
    m.barrier(barrier).bytes -= bytes;
    m.maybe_complete(barrier);
  });
}

void store(const void* pointer) {
  here().outcome().stored.push_back(pointer);
}

float multiply_scores(uint64_t a, uint64_t b, int columns) {
  Machine& m = here();
  m.yield();
  const int warp_of_group = m.self().number % kWarpsPerWarpgroup;
  const int row_bytes = row_bytes_of(a);
  const uint32_t a_rows = row_start(start_of(a)), b_rows = row_start(start_of(b));
  Group& group = m.self().group;
  const Content q = read_rows(a_rows + uint32_t(warp_of_group * kRowsPerWarp * row_bytes),
                              kRowsPerWarp, row_bytes, &group.granules);
  const Content k = read_rows(b_rows, columns, row_bytes_of(b), &group.granules);
  const int q_column = q.column + int(start_of(a) - a_rows) / 2;
  const int k_column = k.column + int(start_of(b) - b_rows) / 2;
  const int so_far = group.product ? group.product->extent : 0;
  if (q_column != so_far || k_column != so_far) fail("columns of Q and K that do not belong");
  if (q.batch != k.batch) fail("Q and K of two sequences");
  const Product part{.kind = Product::kScores,
                     .q_row = q.row,
                     .q_head = q.head,
                     .key_row = k.row,
                     .kv_head = k.head,
                     .batch = q.batch};
  grow(&group, part, kProductDepth);
  return m.setting().infinite(part) ? std::numeric_limits<float>::infinity() : 0.0f;
}

void multiply_output(uint64_t b, int columns) {
  Machine& m = here();
  m.yield();
  const int row_bytes = row_bytes_of(b);
  const int slab_columns = row_bytes / 2;
  Group& group = m.self().group;
  const int so_far = group.product ? group.product->extent : 0;
  for (int slab = 0; slab < columns / slab_columns; ++slab) {
    const Content v = read_rows(start_of(b) + uint32_t(slab) * slab_distance(b), kProductDepth,
                                row_bytes, &group.granules);
    if (v.column != slab * slab_columns) fail("columns of V that do not belong");
    grow(&group,
         {.kind = Product::kOutput, .key_row = v.row - so_far, .kv_head = v.head, .batch = v.batch},
         slab == 0 ? kProductDepth : 0);
  }
}

void commit_products() {
  Warp& warp = here().self();
  if (warp.group.product) {
    here().outcome().products[size_t(warp.number)].push_back(*warp.group.product);
  }
  warp.groups.push_back(std::move(warp.group));
  warp.group = {};
}

void wait_for_products(int pending) {
  Machine& m = here();
  m.yield();
  while (int(m.self().groups.size()) > pending) {
    m.end_read(&m.self().groups.front().granules);
    m.self().groups.pop_front();
  }
}

}  // namespace fa3::machine
