// SPDX-License-Identifier: Apache-2.0
// The kernels that are built, a line of text each in the object file, where CMake reads them
// (cmake/kernel_entries.cmake) and nothing is run. A line has the pass, the row's number, "sample"
// if the row stands for others, the name, the kernel's numbers in bf16, and its headers.
#include <algorithm>

#include "engine/hopper/config/config_text.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/kernels/headers_of.h"
#include "engine/hopper/kernels/kernel_name.h"

namespace fa3::hopper {
namespace {

using Line = FixedText<512>;

// Of rows with the same parts, which differ in sizes alone, the first one.
constexpr bool is_sample(size_t row) {
  for (size_t i = 0; i < row; ++i) {
    const Kernel &a = kForward[i].kernel, &b = kForward[row].kernel;
    if (kForward[i].built && a.operands == b.operands && a.tiles == b.tiles && a.sum == b.sum &&
        a.weights == b.weights) {
      return false;
    }
  }
  return true;
}

constexpr Line line_of(size_t row) {
  const Kernel kernel = kernel_of(kForward[row], Element::kBf16);
  Line line;
  line.add("fa3 kernel forward ").add(int64_t(row)).add(is_sample(row) ? " sample" : " other");
  line.add(" \"").add(name_of(kernel).view()).add("\" ");
  cuda::for_each_number(kernel, [&](int64_t number) { line.add(number).add(","); });
  for (const std::string_view header : headers_of(kernel)) {
    if (!header.empty()) line.add(" ").add(header);
  }
  return line;
}

constexpr size_t kNumBuilt = size_t(std::ranges::count_if(kForward, &Row::built));

// Of each built row what of(row) says.
template <class Of>
constexpr auto of_built_rows(const Of& of) {
  std::array<decltype(of(size_t{})), kNumBuilt> all;
  auto end = all.begin();
  for (size_t row = 0; row < kForward.size(); ++row) {
    if (kForward[row].built) *end++ = of(row);
  }
  return all;
}

constexpr auto kNames = of_built_rows([](size_t row) { return name_of(kForward[row].kernel); });
static_assert(
    [] {
      for (auto name = kNames.begin(); name != kNames.end(); ++name) {
        const auto is_same = [&](const KernelName& other) { return other.view() == name->view(); };
        if (std::any_of(kNames.begin(), name, is_same)) return false;
      }
      return true;
    }(),
    "two kernels with one name");

}  // namespace

extern const std::array<Line, kNumBuilt> kKernelLines;
constinit const std::array<Line, kNumBuilt> kKernelLines = of_built_rows(line_of);

}  // namespace fa3::hopper
