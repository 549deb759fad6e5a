// SPDX-License-Identifier: Apache-2.0
#include "api/layout.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace fa3::api {
namespace {

// What both layouts know of the options and of the rest; struct_size stays.
void copy_common_fields(const void* from, Layout from_layout, void* to, Layout to_layout) {
  const auto* source = static_cast<const std::byte*>(from) + sizeof(size_t);
  auto* target = static_cast<std::byte*>(to) + sizeof(size_t);
  std::memcpy(target, source, std::min(from_layout.options, to_layout.options));
  const auto rest = [](Layout layout) { return layout.size - sizeof(size_t) - layout.options; };
  std::memcpy(target + to_layout.options, source + from_layout.options,
              std::min(rest(from_layout), rest(to_layout)));
}

const Layout* find_layout(std::span<const Layout> layouts, size_t struct_size) {
  const auto found = std::find_if(layouts.begin(), layouts.end(),
                                  [&](const Layout& layout) { return layout.size == struct_size; });
  return found == layouts.end() ? nullptr : &*found;
}

Status unknown_size(const char* name, std::span<const Layout> layouts, size_t struct_size) {
  const size_t newest = layouts.back().size;
  if (struct_size > newest) {
    return invalid(name, ": expected struct_size at most ", newest, ", that of fa3 ",
                   FA3_VERSION_MAJOR, ".", FA3_VERSION_MINOR, ".", FA3_VERSION_PATCH, ", got ",
                   struct_size,
                   "; the program was compiled with a newer fa3.h: link a library of "
                   "that version or a later one");
  }
  std::string expected;
  for (const Layout& layout : layouts) {
    expected += concat(expected.empty() ? "" : " or ", layout.size);
  }
  return invalid(name, ": expected struct_size ", expected, ", got ", struct_size,
                 "; start from the *_init function");
}

}  // namespace

Status widen(const char* name, const void* given, std::span<const Layout> layouts, void* newest) {
  size_t struct_size = 0;
  std::memcpy(&struct_size, given, sizeof(struct_size));
  const Layout* layout = find_layout(layouts, struct_size);
  if (layout == nullptr) return unknown_size(name, layouts, struct_size);
  copy_common_fields(given, *layout, newest, layouts.back());
  return {};
}

void narrow(const void* newest, std::span<const Layout> layouts, void* given, size_t struct_size) {
  if (struct_size < sizeof(size_t)) return;
  std::memset(given, 0, struct_size);
  std::memcpy(given, &struct_size, sizeof(struct_size));
  // A newer header's struct stays zero: the call that it is meant for says what is wrong.
  const Layout* layout = find_layout(layouts, struct_size);
  if (layout != nullptr) copy_common_fields(newest, layouts.back(), given, *layout);
}

}  // namespace fa3::api
