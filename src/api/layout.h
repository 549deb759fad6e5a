// SPDX-License-Identifier: Apache-2.0
//
// Room for later fields. A params struct is its struct_size, then its options (if it has any), then
// the rest; later versions of fa3.h append to the options and to the rest. A caller's struct_size
// says which version it was compiled with, and with that where its fields lie.
//
// Before the first release a new field changes its struct's row here, and after it adds one: a
// static_assert asks for it. A row that was released never changes.
#pragma once

#include <fa3/fa3.h>
#include <fa3/mla.h>
#include <fa3/ring.h>
#include <fa3/status.h>

#include <array>
#include <cstddef>
#include <span>

namespace fa3::api {

struct Layout {
  size_t size;         // of the whole struct
  size_t options = 0;  // of the fa3_options within
  bool operator==(const Layout&) const = default;
};

// The layouts of a params struct, oldest first.
template <class Params>
inline constexpr std::array<Layout, 0> kLayouts;
template <>
inline constexpr auto kLayouts<fa3_forward_params> = std::to_array<Layout>({{2680, 784}});
template <>
inline constexpr auto kLayouts<fa3_backward_params> = std::to_array<Layout>({{2256, 784}});
template <>
inline constexpr auto kLayouts<fa3_merge_params> = std::to_array<Layout>({{432}});
template <>
inline constexpr auto kLayouts<fa3_append_params> = std::to_array<Layout>({{1688}});
template <>
inline constexpr auto kLayouts<fa3_quantize_params> = std::to_array<Layout>({{880}});
template <>
inline constexpr auto kLayouts<fa3_mla_forward_params> = std::to_array<Layout>({{2040}});
template <>
inline constexpr auto kLayouts<fa3_mla_backward_params> = std::to_array<Layout>({{1280}});
template <>
inline constexpr auto kLayouts<fa3_mla_append_params> = std::to_array<Layout>({{1176}});
template <>
inline constexpr auto kLayouts<fa3_mla_gather_params> = std::to_array<Layout>({{544}});
template <>
inline constexpr auto kLayouts<fa3_ring> = std::to_array<Layout>({{56}});

template <class Params>
constexpr std::span<const Layout> layouts_of() {
  constexpr size_t options = [] {
    if constexpr (requires(Params params) { params.options; }) return sizeof(Params::options);
    return size_t{0};
  }();
  static_assert(kLayouts<Params>.back() == Layout{sizeof(Params), options});
  return kLayouts<Params>;
}

// Copies a caller's struct of any released layout into `newest`, a struct of the last layout that
// holds the defaults: fields that the caller does not know keep them. `name` is the argument's.
Status widen(const char* name, const void* given, std::span<const Layout> layouts, void* newest);

// Fills a caller's struct of `struct_size` bytes with its part of `newest`, a struct of the last
// layout that holds the defaults.
void narrow(const void* newest, std::span<const Layout> layouts, void* given, size_t struct_size);

}  // namespace fa3::api
