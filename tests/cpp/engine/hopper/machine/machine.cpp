// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <cstring>

#include "block.h"
#include "cuda_words.h"
#include "failure.h"

namespace fa3::machine {
namespace {

Block* the_block = nullptr;

// What a warp may not leave behind.
void require_idle() {
  const size_t warp = size_t(here().warp());
  if (!here().products[warp].idle()) fail("warp ", warp, " left with products in flight");
  if (!here().departures[warp].idle()) fail("warp ", warp, " left with copies in flight");
  if (!here().thread_copies[warp].idle()) {
    fail("warp ", warp, " left with copies that no barrier was told of");
  }
}

}  // namespace

Block& here() {
  return *the_block;
}

Block::Block(const Setting& s, int warps, const std::function<void()>& body)
    : setting(s),
      scheduler(s, warps,
                [body] {
                  body();
                  require_idle();
                }),
      memory(s.buffers),
      registers(warps * s.neighbours, warps),
      faults(s.fault, s.kv) {
  if (warps > kMostWarps) fail("more than ", kMostWarps, " warps");
  for (int w = 0; w < warps; ++w) clocks[size_t(w)].tick(w);
  outcome.products.resize(size_t(warps));
}

void Block::require_kernel_before_ended() const {
  const int warp = scheduler.warp();
  if (setting.pdl && !waited[size_t(warp)]) {
    fail("warp ", warp, " reads what the kernel before may still write");
  }
}

Outcome run_block(const Setting& setting, int warps, unsigned blocks,
                  const std::function<void()>& body) {
  blockIdx.x = setting.block;
  gridDim.x = blocks;
  Outcome outcome;
  try {
    Block block(setting, warps, body);
    the_block = &block;
    block.outcome.error = block.scheduler.run();
    block.outcome.switches = block.scheduler.switches();
    if (block.outcome.error.empty()) block.registers.require_whole_warpgroups();
    outcome = std::move(block.outcome);
  } catch (const ProtocolError& error) {
    outcome.error = error.what();
  }
  the_block = nullptr;
  return outcome;
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
