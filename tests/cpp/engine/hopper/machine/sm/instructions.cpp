// SPDX-License-Identifier: Apache-2.0
#include "instructions.h"

#include <cstring>

#include "cuda_words.h"
#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {

void sync_block() {
  Block& block = here();
  if (block.faults.forgets_block_barrier(block.thread())) return;
  block.named.sync(0, block.scheduler.threads() * kThreadsOfLane);
}

void sync_warp() {
  here().meetings[size_t(here().warp())].sync();
}
const std::array<uint64_t, kLanes>& exchange(const char* instruction, uint64_t mine) {
  return here().meetings[size_t(here().warp())].exchange(instruction, mine);
}

void together(const char* instruction, void* mine,
              const std::function<void(const std::array<uint64_t, kLanes>& lanes)>& work) {
  here().meetings[size_t(here().warp())].exchange(instruction, reinterpret_cast<uint64_t>(mine),
                                                  work);
}

int draw(int* counter, int count) {
  Block& block = here();
  block.scheduler.yield();
  *counter += int(block.scheduler.random()() % 3);  // other blocks draw too
  const int ticket = *counter;
  *counter += count;
  block.outcome.drawn.push_back(ticket);
  return ticket;
}

void barrier_init(uint32_t barrier, uint32_t arrivals) {
  here().barriers.init(barrier, int(arrivals));
}
void barrier_arrive(uint32_t barrier, int64_t bytes) {
  here().barriers.arrive(barrier, bytes);
}
bool barrier_passed(uint32_t barrier, uint32_t parity) {
  return here().barriers.passed(barrier, parity);
}
void barrier_wait(uint32_t barrier, uint32_t parity) {
  here().barriers.wait(barrier, parity);
}
void named_arrive(int id, int threads) {
  if (!here().faults.forgets_numbered_barrier(id)) here().named.arrive(id, threads);
}
void named_sync(int id, int threads) {
  if (!here().faults.forgets_barrier(id)) here().named.sync(id, threads);
}
unsigned named_count(int id, int threads, bool value) {
  return here().named.sync_and_count(id, threads, value);
}
unsigned cluster_rank() {
  return unsigned(here().rank);
}
void cluster_arrive() {
  here().cluster->arrive(true);
}
void cluster_arrive_relaxed() {
  here().cluster->arrive(false);
}
void fence_mbarrier_init() {
  Block& block = here();
  block.fenced[size_t(block.thread())] = block.clock();
  block.clock().tick(block.actor());
}
void cluster_wait() {
  here().cluster->wait();
}

namespace {

constexpr int kRankBit = 24;  // shared::cluster addresses: above it, the rank and one
constexpr char kLeft[] = "sent to a CTA that has left";

int rank_of(uint32_t address) {
  return int(address >> kRankBit) - 1;
}
uint32_t in_cta(uint32_t address) {
  return address & ((1u << kRankBit) - 1);
}

}  // namespace

uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const unsigned char*>(pointer) - here().smem->bytes;
  if (offset < 0 || offset >= kSmemBytes) fail("a pointer that is not into shared memory");
  return kSmemBase + uint32_t(offset);
}

unsigned char* smem_at(uint32_t address) {
  if (address < kSmemBase || address - kSmemBase >= uint32_t(kSmemBytes)) {
    fail("address ", address, " is outside of shared memory");
  }
  return here().smem->bytes + (address - kSmemBase);
}

uint32_t in_cluster(uint32_t address, unsigned rank) {
  return address | (rank + 1) << kRankBit;
}

void send_to_cta(uint32_t address, const float* values, int count, uint32_t barrier) {
  here().scheduler.yield();
  if (rank_of(address) != rank_of(barrier)) fail("sent to one CTA, counted in another");
  Block& to = block_of_cluster(rank_of(address));
  const uint32_t offset = in_cta(address) - kSmemBase;
  const std::vector<float> sent(values, values + count);
  here().scheduler.later([&to, offset, sent, at = in_cta(barrier)] {
    const size_t bytes = sent.size() * sizeof(float);
    if (to.has_left()) fail(kLeft);
    std::memcpy(to.smem->bytes + offset, sent.data(), bytes);
    to.barriers.bytes_arrived(at, int64_t(bytes));
  });
}

// The memory of both CTAs must last until the bytes are there.
void copy_to_cta(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
  Block& block = here();
  block.scheduler.yield();
  if (rank_of(to) != rank_of(barrier)) fail("sent to one CTA, counted in another");
  Block& other = block_of_cluster(rank_of(to));
  const uint32_t place = in_cta(to), counted_by = in_cta(barrier);
  other.barriers.require_known(counted_by, block.clock());
  const Moment arrival = other.barriers.end_of_phase(counted_by);
  std::vector<Content> sent = block.memory.begin_send(block.accessor(), from, bytes, arrival);
  for (Content& content : sent) content.sender = block.rank + 1;
  other.memory.begin_copy(block.accessor_in(other), place, bytes, arrival);
  block.visits.push_back({arrival, "a CTA left while another was sent its memory"});
  other.visits.push_back({arrival, kLeft});
  block.scheduler.later([&other, place, bytes, counted_by, sent] {
    if (other.has_left()) fail(kLeft);
    other.memory.end_copy(place, bytes,
                          [&](int offset) { return sent[size_t(offset) / kPieceBytes]; });
    other.barriers.bytes_arrived(counted_by, bytes);
  });
}

void arrive_at_cta(uint32_t barrier) {
  Block& block = here();
  Block& other = block_of_cluster(rank_of(barrier));
  block.scheduler.yield();
  if (block.faults.forgets_arrival_elsewhere()) return;
  if (other.has_left()) fail(kLeft);
  other.barriers.require_known(in_cta(barrier), block.clock());
  other.visits.push_back({block.clock().now(block.actor()), kLeft});
  other.barriers.arrive(in_cta(barrier), 0);
}

void set_registers(int registers, bool more) {
  more ? here().registers.increase(registers) : here().registers.decrease(registers);
}

void store_shared(uint32_t address) {
  here().scheduler.yield();
  here().memory.store(here().accessor(), address);
}
void load_shared(uint32_t address) {
  here().scheduler.yield();
  Block& block = here();
  const Content& content = block.memory.load(block.accessor(), address);
  if (!kAllLanes || block.thread() % kLanes != 0) return;
  block.outcome.loads[size_t(block.warp_of_all())].push_back(content);
}
void fence_proxy_async() {
  if (!here().faults.forgets_fence(here().warp())) here().memory.fence(here().accessor());
}
void fence_proxy_async_global() {
  Block::Found& found = here().found[size_t(here().thread())];
  found.fenced.insert(found.looked.begin(), found.looked.end());
}
void wait_for_kernel_before() {
  here().waited[size_t(here().thread())] = true;
}
void copy_by_thread(uint32_t smem, const void* global) {
  here().thread_copies[size_t(here().thread())].begin(smem, global);
}
void copy_by_thread(uint32_t smem, std::vector<unsigned char> bytes) {
  here().thread_copies[size_t(here().thread())].begin(smem, std::move(bytes));
}
void arrive_when_copied(uint32_t barrier) {
  here().thread_copies[size_t(here().thread())].arrive(barrier);
}
void wait_for_thread_copies() {
  here().thread_copies[size_t(here().thread())].wait();
}
void commit_thread_copies() {
  here().thread_copies[size_t(here().thread())].commit();
}
void wait_for_thread_copies(int newest_groups) {
  here().thread_copies[size_t(here().thread())].wait_for_groups(newest_groups);
}
void store_global(const void* pointer) {
  Block& block = here();
  block.outcome.stored.push_back(pointer);
  block.global.store(pointer, block.clock().now(block.actor()));
}
void load_global(const void* pointer) {
  Block& block = here();
  block.scheduler.yield();
  if (!block.global.has_stored(pointer)) {
    fail("read from global memory before it was stored, by ", name(block.thread()));
  }
  if (!block.global.is_known(pointer, block.clock())) {
    fail("no flag between a store to global memory and its reader, ", name(block.thread()));
  }
}
// Sometimes the CTAs before have not added yet.
int load_semaphore(const int* counter) {
  here().scheduler.yield();
  const bool waits = here().scheduler.random()() % 2 != 0;
  const int seen = waits ? *counter - 1 : *counter;
  Block& block = here();
  block.outcome.semaphore_uses.push_back(
      {counter, false, seen, block.outcome.departures.size(), block.cta});
  if (seen >= block.setting.made) block.found[size_t(block.thread())].looked.insert(counter);
  return seen;
}

void add_to_semaphore(int* counter, int value) {
  here().scheduler.yield();
  *counter += value;
  Outcome& outcome = here().outcome;
  outcome.semaphore_uses.push_back({counter, true, value, outcome.departures.size(), here().cta});
}

void raise_flag(uint64_t* flag, uint64_t value) {
  Block& block = here();
  block.scheduler.yield();
  *flag = value;
  if (!block.faults.tells_nothing()) block.global.raise(flag, block.clock());
  block.clock().tick(block.actor());
}
void wait_for_flag(const uint64_t* flag, uint64_t value) {
  Block& block = here();
  if (block.faults.forgets_flags()) return;
  block.scheduler.wait_until("a flag", [=] { return *flag == value; });
  block.global.learn(flag, &block.clock());
}
void take_back_flag(uint64_t* flag, uint64_t value) {
  here().scheduler.yield();
  if (!here().faults.leaves_flags()) *flag = value;
}

uint64_t count_split(uint64_t* counter, uint64_t splits) {
  here().scheduler.yield();
  const uint64_t before = *counter;
  *counter += here().faults.counted(splits);
  return before;
}

bool replace_count(uint64_t* counter, uint64_t expected, uint64_t value) {
  here().scheduler.yield();
  const bool is_as_expected = *counter == expected;
  if (is_as_expected) *counter = value;
  return is_as_expected;
}

void add_global(const void* pointer, int bytes) {
  here().scheduler.yield();
  here().outcome.departures.push_back(
      {.warp = here().warp_of_all(), .to = pointer, .bytes = bytes, .adds = true});
}

namespace {

void require_some_inside(const TensorMap& known, Coordinates at) {
  if (known.origin_is_memory) return;
  const int in_tile = known.of_queries ? at.row : at.inner;
  const int row = known.of_queries ? at.head : at.row;
  if (in_tile >= known.rows_before || row > known.rows || at.column >= known.columns) {
    fail("a box outside of the tensor (row ", row, ", ", in_tile, ", column ", at.column,
         ") reads its map's origin, which is not memory");
  }
}

}  // namespace

void load_tile(uint32_t smem, const CUtensorMap& map, Coordinates at, uint32_t barrier) {
  const TensorMap known = decoded(map);
  require_some_inside(known, at);
  begin_load(smem, known.box_rows * known.row_bytes * known.slabs, barrier, [=](int offset) {
    const int row_of_box = offset / known.row_bytes % known.box_rows;
    if (known.of_queries) {
      return Content{known.tensor, at.row + at.head - known.rows_before + row_of_box, at.column,
                     at.batch, 0};
    }
    const int first_row = at.row + at.inner - known.rows_before;
    if (known.transposed_later) {
      return Content{known.tensor, at.column + row_of_box, first_row, at.head, at.batch};
    }
    return Content{known.tensor, at.batch * known.page_rows + first_row + row_of_box, at.column,
                   at.head, known.page_rows > 0 ? 0 : at.batch};
  });
}
void load_bytes(uint32_t smem, const void* global, int bytes, uint32_t barrier) {
  begin_load(smem, bytes, barrier, [global](int) { return Content{.tensor = global}; });
}
void store_tile(const CUtensorMap& map, Coordinates at, uint32_t smem) {
  const TensorMap known = decoded(map);
  require_some_inside(known, at);
  here().departures[size_t(here().thread())].send(
      smem, {.to = known.tensor,
             .row = at.row + at.inner - known.rows_before,
             .column = at.column,
             .head = at.head,
             .batch = at.batch,
             .rows = known.box_rows - at.inner,
             .bytes = known.box_rows * known.row_bytes * known.slabs});
}
void store_bytes(const void* global, uint32_t smem, int bytes, bool adds) {
  here().departures[size_t(here().thread())].send(smem,
                                                  {.to = global, .bytes = bytes, .adds = adds});
}
void commit_copies() {
  here().departures[size_t(here().thread())].commit();
}
void wait_for_copies(int pending) {
  here().departures[size_t(here().thread())].wait(pending);
}

void wait_for_arrival(int pending) {
  here().departures[size_t(here().thread())].wait_for_arrival(pending);
}

void multiply(float* d, int count, const Operand& a, const Operand& b, bool adds) {
  here().scheduler.yield();
  here().products[size_t(here().leader())].multiply(d, count, a, b, adds);
}
void commit_products() {
  here().products[size_t(here().leader())].commit();
}
void wait_for_products(int pending) {
  here().scheduler.yield();
  here().products[size_t(here().leader())].wait(pending);
}

}  // namespace fa3::machine
