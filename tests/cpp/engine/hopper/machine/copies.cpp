// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include "block.h"
#include "failure.h"

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
  require_aligned(smem, bytes);
  block.memory.begin_copy(block.accessor(), smem, bytes, block.barriers.end_of_phase(barrier));
  block.scheduler.later([&block, smem, bytes, barrier, content] {
    block.memory.end_copy(smem, bytes, content);
    block.barriers.bytes_arrived(barrier, bytes);
  });
}

void Departures::send(uint32_t smem, Departure departure) {
  Block& block = here();
  block.scheduler.yield();
  require_aligned(smem, departure.bytes);
  departure.warp = block.warp();
  departure.filling =
      block.memory.begin_read(block.accessor(), smem, departure.bytes, &open_).filling;
  block.outcome.departures.push_back(departure);
}

void Departures::commit() {
  flying_.push_back(std::move(open_));
  open_ = {};
}

void Departures::wait(int pending) {
  here().scheduler.yield();
  while (int(flying_.size()) > pending) {
    here().memory.end_reads(here().accessor(), &flying_.front());
    flying_.pop_front();
  }
}

}  // namespace fa3::machine
