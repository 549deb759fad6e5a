// SPDX-License-Identifier: Apache-2.0
// The catalogue's kernels, a line of text each (cuda/catalogue/lines.h).
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/kernels/backward.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/kernels/headers_of.h"
#include "engine/hopper/kernels/kernel_name.h"

namespace fa3::hopper {

constexpr bool have_same_parts(const Kernel& a, const Kernel& b) {
  return a.operands == b.operands && a.tiles == b.tiles && a.sum == b.sum && a.weights == b.weights;
}
constexpr bool have_same_parts(const BackwardConfig& a, const BackwardConfig& b) {
  return a.tiles == b.tiles && a.scores == b.scores && a.weights == b.weights &&
         a.gradients == b.gradients && is_for_some_dense_calls(a) == is_for_some_dense_calls(b);
}

extern constinit const auto kForwardLines = cuda::lines_of<kForward>("forward");
extern constinit const auto kBackwardLines = cuda::lines_of<kBackward>("backward");

}  // namespace fa3::hopper
