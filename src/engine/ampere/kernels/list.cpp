// SPDX-License-Identifier: Apache-2.0
// The catalogue's kernels, a line of text each (cuda/catalogue/lines.h).
#include "engine/ampere/config/config_text.h"
#include "engine/ampere/kernels/backward.h"
#include "engine/ampere/kernels/forward.h"
#include "engine/cuda/catalogue/lines.h"

namespace fa3::ampere {

constexpr cuda::KernelName name_of(const auto& c) {
  cuda::KernelName name;
  name.add("d").add(c.head_dim).add("/").add(c.head_dim_v).add(" ");
  name.add(c.block_m).add("x").add(c.block_n).add("x").add(c.stages);
  if (c.block_mask) name.add(" listed");
  return name;
}
constexpr cuda::KernelName name_of(const ForwardConfig& c) {
  cuda::KernelName name = name_of<ForwardConfig>(c);
  if (c.quantized) name.add(" quantized cache");
  if (c.dropout) name.add(" dropped");
  return name;
}
constexpr cuda::KernelName name_of(const BackwardConfig& c) {
  cuda::KernelName name = name_of<BackwardConfig>(c);
  if (c.scored) name.add(" scored");
  return name;
}

constexpr std::array<std::string_view, 1> headers_of(const ForwardConfig&) {
  return {"engine/ampere/forward/forward_kernel.cuh"};
}
constexpr std::array<std::string_view, 1> headers_of(const BackwardConfig&) {
  return {"engine/ampere/backward/backward_kernel.cuh"};
}

constexpr bool have_same_parts(const ForwardConfig&, const ForwardConfig&) {
  return true;  // they share all of their source
}
constexpr bool have_same_parts(const BackwardConfig& a, const BackwardConfig& b) {
  return a.scored == b.scored && a.block_mask == b.block_mask;
}

extern constinit const auto kForwardLines = cuda::lines_of<kForward>("forward");
extern constinit const auto kBackwardLines = cuda::lines_of<kBackward>("backward");

}  // namespace fa3::ampere
