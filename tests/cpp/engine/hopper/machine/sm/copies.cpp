// SPDX-License-Identifier: Apache-2.0
#include "sm/copies.h"

#include <algorithm>

#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {
namespace {

void require_aligned(uint32_t smem, int bytes) {
  constexpr int kBulk = 16;
  if (smem % kBulk != 0 || bytes % kBulk != 0 || bytes == 0) {
    fail("a copy of ", bytes, " bytes at address ", smem, ": both are multiples of 16");
  }
}

}  // namespace

void begin_load(uint32_t smem, int bytes, uint32_t barrier,
                const std::function<Content(int offset)>& content) {
  Block& block = here();
  block.scheduler.yield();
  block.require_made(content(0));
  require_aligned(smem, bytes);
  block.memory.begin_copy(block.accessor(), smem, bytes, block.barriers.end_of_phase(barrier));
  block.scheduler.later([&block, smem, bytes, barrier, content] {
    block.memory.end_copy(smem, bytes, content);
    block.barriers.bytes_arrived(barrier, bytes);
  });
}

namespace {

// What lies at an address of global memory; zeros at none.
Content content_at(const void* global) {
  if (global == nullptr) return {};
  const auto address = reinterpret_cast<uintptr_t>(global);
  for (const GlobalTensor& t : here().setting.tensors) {
    const int64_t element = (int64_t(address) - int64_t(t.address)) / t.element_bytes;
    const int64_t row = element / (int64_t{t.heads} * t.columns);
    if (address < t.address || row >= t.rows) continue;
    return {.tensor = t.tensor,
            .row = int(row % t.rows_of_entry),
            .column = int(element % t.columns),
            .head = int(element / t.columns % t.heads),
            .batch = int(row / t.rows_of_entry)};
  }
  fail("a copy by threads from outside of every tensor");
}

}  // namespace

void ThreadCopies::begin(uint32_t smem, const void* global) {
  begin({smem, content_at(global), {}});
}

void ThreadCopies::begin(uint32_t smem, std::vector<unsigned char> bytes) {
  begin({smem, {}, std::move(bytes)});
}

void ThreadCopies::begin(Copy copy) {
  here().scheduler.yield();
  here().require_kernel_before_ended();
  Block& block = here();
  if (kAllLanes) {
    block.memory.begin_own_copy(block.accessor(), copy.smem);
  } else {
    block.memory.begin_thread_copy(block.accessor(), copy.smem);
  }
  open_.push_back(std::move(copy));
}

void ThreadCopies::arrive(uint32_t barrier) {
  Block& block = here();
  block.scheduler.yield();
  const auto tell = [&block, barrier, thread = block.thread()](const std::vector<Copy>& group) {
    for (const Copy& copy : group) {
      block.memory.tell_arrival(thread, copy.smem, block.barriers.end_of_phase(barrier));
    }
  };
  tell(open_);
  ++groups_in_flight_;
  block.scheduler.later([this, &block, barrier, tell, group = std::move(open_)] {
    tell(group);  // in a later phase, if that one did not wait for them
    for (const Copy& copy : group) {
      if (!kAllLanes) block.memory.end_thread_copy(copy.smem, copy.content);
      if (kAllLanes) block.memory.end_told_copy(copy.smem);
      std::copy(copy.bytes.begin(), copy.bytes.end(), block.smem->bytes + copy.smem - kSmemBase);
    }
    --groups_in_flight_;
    block.barriers.copies_arrived(barrier);
  });
  open_ = {};
}

void ThreadCopies::wait() {
  if (kAllLanes) {
    commit();
    wait_for_groups(0);
  }
  here().scheduler.wait_until("its copies", [this] { return groups_in_flight_ == 0; });
}

void ThreadCopies::commit() {
  groups_.push_back(std::move(open_));
  open_ = {};
}

void ThreadCopies::wait_for_groups(int newest) {
  Block& block = here();
  block.scheduler.yield();
  if (block.faults.forgets_copies()) return;
  for (; int(groups_.size()) > newest; groups_.pop_front()) {
    for (const Copy& copy : groups_.front()) {
      block.memory.end_own_copy(block.accessor(), copy.smem, copy.content);
      std::copy(copy.bytes.begin(), copy.bytes.end(), smem_at(copy.smem));
    }
  }
}

bool ThreadCopies::idle() const {
  const auto empty = [](const std::vector<Copy>& group) { return group.empty(); };
  return open_.empty() && std::all_of(groups_.begin(), groups_.end(), empty);
}

void Departures::send(uint32_t smem, Departure departure) {
  Block& block = here();
  block.scheduler.yield();
  require_aligned(smem, departure.bytes);
  departure.warp = block.warp_of_all();
  departure.filling =
      block.memory.begin_read(block.accessor(), smem, departure.bytes, &open_).filling;
  open_departures_.push_back(block.outcome.departures.size());
  block.outcome.departures.push_back(departure);
}

void Departures::commit() {
  flying_.push_back(std::move(open_));
  open_ = {};
  departures_.push_back(std::move(open_departures_));
  open_departures_ = {};
}

void Departures::wait(int pending) {
  here().scheduler.yield();
  while (int(flying_.size()) > pending) {
    here().memory.end_reads(here().accessor(), &flying_.front());
    flying_.pop_front();
  }
}

void Departures::wait_for_arrival(int pending) {
  wait(pending);
  Outcome& outcome = here().outcome;
  for (size_t group = 0; group + size_t(pending) < departures_.size(); ++group) {
    for (const size_t departure : departures_[group]) {
      size_t& arrived = outcome.departures[departure].arrived;
      arrived = std::min(arrived, outcome.semaphore_uses.size());
    }
  }
}

}  // namespace fa3::machine
