// SPDX-License-Identifier: Apache-2.0
// An engine's catalogue as lines of text in an object file, where CMake reads them
// (cmake/kernel_entries.cmake) and nothing is run. A line has the pass, the row's number, "sample"
// if the row stands for others, the name, the kernel's numbers in bf16, and its headers. Of the
// engine are name_of(), headers_of() and have_same_parts(): rows that differ in sizes alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/cuda/jit/config_text.h"

namespace fa3::cuda {

// Text that constant expressions write: std::string cannot outlive them.
template <size_t kSize>
struct FixedText {
  char chars[kSize] = {};
  size_t size = 0;

  constexpr FixedText& add(std::string_view text) {
    for (const char c : text) chars[size++] = c;
    return *this;
  }
  constexpr FixedText& add(int64_t number) {
    if (number < 0) return add("-").add(-number);
    if (number >= 10) add(number / 10);
    chars[size++] = char('0' + number % 10);
    return *this;
  }
  constexpr std::string_view view() const { return {chars, size}; }
};

using KernelName = FixedText<64>;

template <const auto& kRows>
constexpr auto line_of(std::string_view pass, size_t row) {
  const auto kernel = kernel_of(kRows[row], Element::kBf16);
  // The first of the rows that differ in sizes alone.
  const bool is_sample = std::none_of(kRows.begin(), kRows.begin() + row, [&](const auto& other) {
    return other.built && have_same_parts(other.kernel, kernel);
  });
  FixedText<512> line;
  line.add("fa3 kernel ").add(pass).add(" ").add(int64_t(row));
  line.add(is_sample ? " sample \"" : " other \"").add(name_of(kernel).view()).add("\" ");
  for_each_number(kernel, [&](int64_t number) { line.add(number).add(","); });
  for (const std::string_view header : headers_of(kernel)) {
    if (!header.empty()) line.add(" ").add(header);
  }
  return line;
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
constexpr bool have_own_names() {
  const auto names = of_built_rows<kRows>([](size_t row) { return name_of(kRows[row].kernel); });
  for (auto name = names.begin(); name != names.end(); ++name) {
    const auto is_same = [&](const KernelName& other) { return other.view() == name->view(); };
    if (std::any_of(names.begin(), name, is_same)) return false;
  }
  return true;
}

// The lines of the rows that are built.
template <const auto& kRows>
constexpr auto lines_of(std::string_view pass) {
  static_assert(have_own_names<kRows>(), "two kernels with one name");
  return of_built_rows<kRows>([=](size_t row) { return line_of<kRows>(pass, row); });
}

}  // namespace fa3::cuda
