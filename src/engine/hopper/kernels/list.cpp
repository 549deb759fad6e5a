// SPDX-License-Identifier: Apache-2.0
// The kernels that are built, a line of text each in the object file, where CMake reads them
// (cmake/kernel_entries.cmake) and nothing is run. A line has the pass, the row's number, "sample"
// if the row stands for others, the name, the kernel's numbers in bf16, and its headers.
#include <algorithm>

#include "engine/hopper/config/config_text.h"
#include "engine/hopper/kernels/backward.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/kernels/headers_of.h"
#include "engine/hopper/kernels/kernel_name.h"

namespace fa3::hopper {
namespace {

using Line = FixedText<512>;

constexpr bool have_same_parts(const Kernel& a, const Kernel& b) {
  return a.operands == b.operands && a.tiles == b.tiles && a.sum == b.sum && a.weights == b.weights;
}
constexpr bool have_same_parts(const BackwardConfig& a, const BackwardConfig& b) {
  return a.variant == b.variant && a.dropout == b.dropout && a.block_mask == b.block_mask &&
         a.wide == b.wide && is_for_some_dense_calls(a) == is_for_some_dense_calls(b);
}

template <const auto& kRows>
constexpr Line line_of(std::string_view pass, size_t row) {
  const auto kernel = kernel_of(kRows[row], Element::kBf16);
  // The first of the rows that differ in sizes alone.
  const bool is_sample = std::none_of(kRows.begin(), kRows.begin() + row, [&](const auto& other) {
    return other.built && have_same_parts(other.kernel, kernel);
  });
  Line line;
  line.add("fa3 kernel ").add(pass).add(" ").add(int64_t(row));
  line.add(is_sample ? " sample \"" : " other \"").add(name_of(kernel).view()).add("\" ");
  cuda::for_each_number(kernel, [&](int64_t number) { line.add(number).add(","); });
  for (const std::string_view header : headers_of(kernel)) {
    if (!header.empty()) line.add(" ").add(header);
  }
  return line;
}

template <class Names>
constexpr bool are_unique(const Names& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    const auto is_same = [&](const KernelName& other) { return other.view() == name->view(); };
    if (std::any_of(names.begin(), name, is_same)) return false;
  }
  return true;
}

// The values of of(row) for the built rows.
template <const auto& kRows, class Of>
constexpr auto of_built_rows(const Of& of) {
  const auto is_built = [](const auto& row) { return row.built; };
  std::array<decltype(of(size_t{})), size_t(std::ranges::count_if(kRows, is_built))> all;
  auto end = all.begin();
  for (size_t row = 0; row < kRows.size(); ++row) {
    if (kRows[row].built) *end++ = of(row);
  }
  return all;
}

template <const auto& kRows>
constexpr auto lines_of(std::string_view pass) {
  static_assert(
      are_unique(of_built_rows<kRows>([](size_t row) { return name_of(kRows[row].kernel); })),
      "two kernels with one name");
  return of_built_rows<kRows>([=](size_t row) { return line_of<kRows>(pass, row); });
}

using ForwardLines = decltype(lines_of<kForward>(""));
using BackwardLines = decltype(lines_of<kBackward>(""));

}  // namespace

extern const ForwardLines kForwardLines;
extern const BackwardLines kBackwardLines;
constinit const ForwardLines kForwardLines = lines_of<kForward>("forward");
constinit const BackwardLines kBackwardLines = lines_of<kBackward>("backward");

}  // namespace fa3::hopper
