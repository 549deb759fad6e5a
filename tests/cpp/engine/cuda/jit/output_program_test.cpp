// SPDX-License-Identifier: Apache-2.0
// Kernels with a gate or the largest score become machine code without a GPU, of every kind in the
// catalogue.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/ampere/kernels/forward.h"
#include "engine/ampere/launch/score_program.h"
#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/kernels/kernel_name.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3 {
namespace {

using hopper::Gate, hopper::GateType, hopper::Kernel;

using OutputProgram = CacheFolder;

const Kernel kDense = hopper::row_named("d64/64 64x128").kernel;

// The first built kernel of each kind. Quick runs take those that decode, and whole tiles of one
// length.
std::vector<Kernel> kinds() {
  std::vector<Kernel> found;
  for (const hopper::Row& row : hopper::kForward) {
    const Kernel k = hopper::kernel_of(row, hopper::Element::kBf16);
    const bool is_known = std::ranges::any_of(found, [&](const Kernel& other) {
      return other.operands == k.operands && other.tiles == k.tiles && other.scores == k.scores &&
             other.sum == k.sum && other.weights == k.weights;
    });
    const bool is_tried = !is_quick() || k.is_decode() || k == kDense;
    if (row.built && !is_known && is_tried) found.push_back(k);
  }
  return found;
}

void expect_that_it_compiles(Kernel kernel, const hopper::Outputs& outputs) {
  kernel.outputs = outputs;
  std::string code;
  const Status status = cuda::find_code(hopper::output_program(kernel), nullptr, &code);
  EXPECT_TRUE(status.ok()) << hopper::name_of(kernel).view() << ": " << status.message();
  EXPECT_EQ(code.substr(1, 3), "ELF");
}

TEST_F(OutputProgram, CompilesForEveryKindOfKernel) {
  FA3_SKIP_WITHOUT_NVRTC();
  for (const Kernel& kernel : kinds()) {
    const bool takes_gate = !kernel.continued();
    expect_that_it_compiles(kernel, {.gate = takes_gate ? Gate::kPairs : Gate::kNone,
                                     .gate_type = GateType::kBf16,
                                     .max_logit = true});
  }
}

// Tiles of two rows a warp, of few rows and of a quantized cache.
TEST_F(OutputProgram, CompilesForTheAmpereEngine) {
  FA3_SKIP_WITHOUT_NVRTC();
  const ampere::ForwardConfig few = ampere::kFewRows64;
  for (const auto& tile : {ampere::kForward[1].kernel, few, ampere::quantized(few)}) {
    if (is_quick() && tile.quantized) continue;
    ampere::ForwardConfig c = tile.with(cuda::Element::kBf16);
    c.outputs = {Gate::kPairs, GateType::kBf16, true};
    std::string code;
    const Status status = cuda::find_code(ampere::output_program(c, {8, 0}), nullptr, &code);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(OutputProgram, CompilesForEveryGate) {
  FA3_SKIP_WITHOUT_NVRTC();
  for (const Gate gate : {Gate::kRows, Gate::kColumns, Gate::kPairs}) {
    for (const GateType type : {GateType::kFp16, GateType::kBf16, GateType::kFp32}) {
      if (is_quick() && type != GateType::kFp32) continue;
      expect_that_it_compiles(kSmall, {gate, type});
    }
  }
}

}  // namespace
}  // namespace fa3
