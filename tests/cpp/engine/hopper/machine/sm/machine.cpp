// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <cstring>

#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {
namespace {

// What a thread may not leave behind.
void require_idle() {
  Block& block = here();
  const size_t thread = size_t(block.thread());
  const std::string who = name(block.thread());
  if (!block.products[thread].idle()) fail(who, " left with products in flight");
  if (!block.departures[thread].idle()) fail(who, " left with copies in flight");
  if (!block.thread_copies[thread].idle()) {
    fail(who, " left with copies that ",
         kAllLanes ? "it did not wait for" : "no barrier was told of");
  }
  block.cluster->require_waited();
  block.cluster->leave();
  block.known_at_end.learn(block.clock());
  ++block.threads_left;
}

// The CTAs that run.
struct Running {
  Running(const Setting& setting, int warps, const Ctas& ctas, const std::function<void()>& body)
      : scheduler(setting, ctas.count, warps,
                  [body] {
                    body();
                    require_idle();
                  }),
        global(setting.stored_before),
        cluster_size(ctas.cluster) {
    if (warps * kLanes > kMostThreads) fail("more than ", kMostThreads / kLanes, " warps");
    if (ctas.count > kMostCtas) fail("more than ", kMostCtas, " CTAs");
    for (int i = 0; i < ctas.count / cluster_size; ++i) {
      clusters.emplace_back(cluster_size * warps * kLanes);
    }
    for (int i = 0; i < ctas.count; ++i) {
      const Index index = index_in(ctas.grid, unsigned(ctas.first + i));
      blocks.push_back(
          std::make_unique<Block>(setting, scheduler, global, outcome, warps, i, index));
      blocks.back()->rank = i % cluster_size;
      blocks.back()->cluster = &clusters[size_t(i / cluster_size)];
    }
    outcome.products.resize(size_t(ctas.count * warps));
    outcome.loads.resize(size_t(ctas.count * warps));
  }

  static Index index_in(dim3 grid, unsigned number) {
    return {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  }

  Outcome outcome;
  Scheduler scheduler;
  GlobalMemory global;
  const int cluster_size;
  std::vector<ClusterBarrier> clusters;
  std::vector<std::unique_ptr<Block>> blocks;
};

Running* running = nullptr;

}  // namespace

Block& here() {
  return *running->blocks[size_t(running->scheduler.cta())];
}

Block& block_of_cluster(int rank) {
  const Block& mine = here();
  if (rank < 0 || rank >= running->cluster_size) fail("the cluster has no CTA ", rank);
  return *running->blocks[size_t(mine.cta - mine.rank + rank)];
}

unsigned char* shared_memory() {
  return here().smem->bytes;
}

Block::Block(const Setting& s, Scheduler& its_scheduler, GlobalMemory& its_global,
             Outcome& its_outcome, int warps, int its_cta, Index its_index)
    : setting(s),
      scheduler(its_scheduler),
      global(its_global),
      outcome(its_outcome),
      cta(its_cta),
      index(its_index),
      memory(s.buffers),
      smem(new SmemBytes),
      registers(warps * s.neighbours, warps),
      faults(s.fault, s.kv, s.barrier),
      meetings(size_t(warps)) {
  constexpr int kJunk = 0xcd;
  std::memset(smem->bytes, kJunk, sizeof(smem->bytes));
  for (int t = 0; t < warps * kLanes; ++t) clocks[size_t(t)].tick(actor_of_thread(cta, t));
}

void Block::require_kernel_before_ended() const {
  if (setting.pdl && !waited[size_t(thread())]) {
    fail(name(thread()), " reads what the kernel before may still write");
  }
}

void Block::require_made(const Content& read) const {
  if (!setting.counter_of) return require_kernel_before_ended();
  const int* const counter = setting.counter_of(read);
  if (counter == nullptr || waited[size_t(thread())]) return;
  const Found& own = found[size_t(thread())];
  if (own.fenced.contains(counter)) return;
  if (own.looked.contains(counter)) {
    fail(name(thread()), " copies what it has found made without a fence between");
  }
  require_kernel_before_ended();
}

Outcome run_ctas(const Setting& setting, int warps, const Ctas& ctas,
                 const std::function<void()>& body) {
  gridDim = {ctas.grid.x, ctas.grid.y, ctas.grid.z};
  blockDim = {unsigned(warps * kThreadsPerWarp), 1, 1};
  Outcome outcome;
  try {
    Running run(setting, warps, ctas, body);
    running = &run;
    run.outcome.error = run.scheduler.run();
    run.outcome.switches = run.scheduler.switches();
    if (run.outcome.error.empty()) {
      for (const auto& block : run.blocks) {
        block->registers.require_whole_warpgroups();
        block->barriers.require_at_rest(setting.expect_ahead);
        for (const Block::Visit& visit : block->visits) {
          if (!block->known_at_end.has(visit.end)) fail(visit.complaint);
        }
      }
    }
    outcome = std::move(run.outcome);
  } catch (const ProtocolError& error) {
    outcome.error = error.what();
  }
  running = nullptr;
  return outcome;
}

Outcome run_block(const Setting& setting, int warps, unsigned blocks,
                  const std::function<void()>& body) {
  return run_ctas(setting, warps, {.grid = {blocks, 1, 1}, .first = int(setting.block)}, body);
}

CUtensorMap encoded(const TensorMap& map) {
  CUtensorMap code{};
  static_assert(sizeof(map) <= sizeof(code));
  std::memcpy(&code, &map, sizeof(map));
  return code;
}

TensorMap decoded(const CUtensorMap& code) {
  TensorMap map;
  std::memcpy(static_cast<void*>(&map), &code, sizeof(map));
  return map;
}

}  // namespace fa3::machine
