// SPDX-License-Identifier: Apache-2.0
//
// Calls of the latent kernels on the host, with numbers: through the engine's plan and launch, on
// the fibres of the protocol model, a lane each. So one run shows what is computed, and who touches
// shared memory when. CTAs run one after the other: none of them waits for another.
#pragma once

#include <cstddef>
#include <string>

#include "api/describe/describe_mla.h"
#include "engine/hopper/latent/latent_kernel.cu"
#include "engine/hopper/latent/plan_latent.h"
#include "runtime.h"
#include "support/latent/latent_call.h"

#undef __shared__
#define __shared__ static  // CTAs come one after the other
#include "engine/hopper/latent/combine_latent.cu"

namespace fa3::hopper {

template <LatentShape C>
machine::KvBarriers stage_barriers() {
  const auto first = uint32_t(machine::kSmemBase + offsetof(LatentSmem<C>, barriers));
  return {.first_full = first, .first_empty = first + C.stages() * 8u, .stages = C.stages()};
}

// Parts of shared memory that meet within 1 KB: units of even and odd blocks, and the chunks of
// rope channels that a thread copies and multiplies.
template <LatentShape C>
std::vector<machine::Buffer> small_buffers() {
  std::vector<machine::Buffer> buffers;
  if constexpr (C.converts()) {
    const auto add = [&](const char* name, size_t first, int bytes, int count) {
      for (int i = 0; i < count; ++i) {
        buffers.push_back(
            {name, machine::kSmemBase + uint32_t(first) + uint32_t(i * bytes), bytes});
      }
    };
    add("units", offsetof(LatentSmem<C>, barriers) + offsetof(LatentRingBarriers<C>, units),
        kWarpsPerWarpgroup * int(sizeof(float)), 2);
    for (int block = 1; block <= (C.slabs() > kValueSlabs ? 2 : 0); ++block) {
      add("rope", size_t(block * C.slabs() - 1) * kSlabBytes, tile::kChunkBytes,
          kSlabBytes / tile::kChunkBytes);
    }
  }
  return buffers;
}

// Makes the kernel of a shape known to launches.
template <LatentShape C>
void add_latent_kernel() {
  machine::add_kernel(&latent_kernel<C>, small_buffers<C>());
}

// Runs a call as the engine does. "" or what went wrong: what the model says, or a wrong result.
inline std::string run_latent(const test::LatentCase& c) {
  test::LatentCall call(c, FA3_CPU);
  ptx::late_sums.clear();
  MlaProblem problem;
  Plan plan;
  const auto step = [](const Status& status) { return status.message(); };
  if (auto said = step(api::describe(call.params(), api::Purpose::call, &problem)); !said.empty()) {
    return said;
  }
  if (auto said = step(plan_mla(problem, &plan)); !said.empty()) return said;
  test::GuardedMemory workspace(FA3_CPU, size_t(plan.workspace_bytes), 16);  // of NaN
  if (auto said = step(run_mla(problem, plan, workspace.data(), nullptr)); !said.empty()) {
    return said;
  }
  if (auto said = machine::take_launch_error(); !said.empty()) return said;
  return call.compare();
}

}  // namespace fa3::hopper
