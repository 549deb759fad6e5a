// SPDX-License-Identifier: Apache-2.0
#include "instructions.h"

#include "block.h"
#include "cuda_words.h"
#include "failure.h"

namespace fa3::machine {

void sync_block() {
  constexpr int kThreadsPerWarp = 32;
  here().named.sync(0, here().scheduler.warps() * kThreadsPerWarp);
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
  here().named.arrive(id, threads);
}
void named_sync(int id, int threads) {
  if (!here().faults.forgets_barrier(id)) here().named.sync(id, threads);
}
unsigned named_count(int id, int threads, bool value) {
  return here().named.sync_and_count(id, threads, value);
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
  here().memory.load(here().accessor(), address);
}
void fence_proxy_async() {
  if (!here().faults.forgets_fence(here().accessor().warp)) here().memory.fence(here().accessor());
}
void wait_for_kernel_before() {
  here().waited[size_t(here().warp())] = true;
}
void copy_by_thread(uint32_t smem, const void* global) {
  here().thread_copies[size_t(here().warp())].begin(smem, global);
}
void arrive_when_copied(uint32_t barrier) {
  here().thread_copies[size_t(here().warp())].arrive(barrier);
}
void wait_for_thread_copies() {
  here().thread_copies[size_t(here().warp())].wait();
}
void store_global(const void* pointer) {
  here().outcome.stored.push_back(pointer);
}
// Sometimes the CTAs before have not added yet.
int load_semaphore(const int* counter) {
  here().scheduler.yield();
  const bool waits = here().scheduler.random()() % 2 != 0;
  const int seen = waits ? *counter - 1 : *counter;
  here().outcome.semaphore_uses.push_back({counter, false, seen, here().outcome.departures.size()});
  return seen;
}

void add_to_semaphore(int* counter, int value) {
  here().scheduler.yield();
  *counter += value;
  here().outcome.semaphore_uses.push_back({counter, true, value, here().outcome.departures.size()});
}

void add_global(const void* pointer, int bytes) {
  here().scheduler.yield();
  here().outcome.departures.push_back(
      {.warp = here().warp(), .to = pointer, .bytes = bytes, .adds = true});
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
  begin_load(smem, known.box_rows * known.row_bytes, barrier, [=](int offset) {
    if (known.of_queries) {
      return Content{known.tensor, at.row + at.head - known.rows_before + offset / known.row_bytes,
                     at.column, at.batch, 0};
    }
    const int first_row = at.row + at.inner - known.rows_before;
    return Content{known.tensor, at.batch * known.page_rows + first_row + offset / known.row_bytes,
                   at.column, at.head, known.page_rows > 0 ? 0 : at.batch};
  });
}
void load_bytes(uint32_t smem, const void* global, int bytes, uint32_t barrier) {
  begin_load(smem, bytes, barrier, [global](int) { return Content{.tensor = global}; });
}
void store_tile(const CUtensorMap& map, Coordinates at, uint32_t smem) {
  const TensorMap known = decoded(map);
  require_some_inside(known, at);
  here().departures[size_t(here().warp())].send(smem, {.to = known.tensor,
                                                       .row = at.row + at.inner - known.rows_before,
                                                       .column = at.column,
                                                       .head = at.head,
                                                       .batch = at.batch,
                                                       .rows = known.box_rows - at.inner,
                                                       .bytes = known.box_rows * known.row_bytes});
}
void store_bytes(const void* global, uint32_t smem, int bytes, bool adds) {
  here().departures[size_t(here().warp())].send(smem, {.to = global, .bytes = bytes, .adds = adds});
}
void commit_copies() {
  here().departures[size_t(here().warp())].commit();
}
void wait_for_copies(int pending) {
  here().departures[size_t(here().warp())].wait(pending);
}

void multiply(float* d, int count, const Operand& a, const Operand& b) {
  here().scheduler.yield();
  here().products[size_t(here().warp())].multiply(d, count, a, b);
}
void commit_products() {
  here().products[size_t(here().warp())].commit();
}
void wait_for_products(int pending) {
  here().scheduler.yield();
  here().products[size_t(here().warp())].wait(pending);
}

}  // namespace fa3::machine
