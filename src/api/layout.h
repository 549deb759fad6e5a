// SPDX-License-Identifier: Apache-2.0
//
// Room for later fields. A params struct is its struct_size, then its options (if it has any), then
// the rest; later versions of fa3.h append to the options and to the rest. A caller's struct_size
// says which version it was compiled with, and with that where its fields lie.
//
// A new field is one row here: the static_asserts ask for it. A row that was released never
// changes.
#pragma once

#include <fa3/fa3.h>
#include <fa3/mla.h>
#include <fa3/ring.h>
#include <fa3/status.h>

#include <cstddef>
#include <span>

namespace fa3::api {

struct Layout {
  size_t size;     // of the whole struct
  size_t options;  // of the fa3_options within
  bool operator==(const Layout&) const = default;
};

// Oldest first; the first row is that of the functions named fa3_*_params_init.
inline constexpr Layout kForwardLayouts[] = {{1424, 472}, {2680, 784}};
inline constexpr Layout kBackwardLayouts[] = {{1624, 472}, {2256, 784}};
inline constexpr Layout kMergeLayouts[] = {{432, 0}};
inline constexpr Layout kAppendLayouts[] = {{1688, 0}};
inline constexpr Layout kQuantizeLayouts[] = {{880, 0}};
inline constexpr Layout kMlaForwardLayouts[] = {{2040, 0}};
inline constexpr Layout kMlaBackwardLayouts[] = {{1280, 0}};
inline constexpr Layout kMlaAppendLayouts[] = {{1176, 0}};
inline constexpr Layout kMlaGatherLayouts[] = {{544, 0}};
inline constexpr Layout kRingLayouts[] = {{56, 0}};

constexpr std::span<const Layout> layouts_of(const fa3_forward_params&) {
  return kForwardLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_backward_params&) {
  return kBackwardLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_merge_params&) {
  return kMergeLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_quantize_params&) {
  return kQuantizeLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_append_params&) {
  return kAppendLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_mla_forward_params&) {
  return kMlaForwardLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_mla_backward_params&) {
  return kMlaBackwardLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_mla_append_params&) {
  return kMlaAppendLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_mla_gather_params&) {
  return kMlaGatherLayouts;
}
constexpr std::span<const Layout> layouts_of(const fa3_ring&) {
  return kRingLayouts;
}

static_assert(std::span(kForwardLayouts).back() ==
              Layout{sizeof(fa3_forward_params), sizeof(fa3_options)});
static_assert(std::span(kBackwardLayouts).back() ==
              Layout{sizeof(fa3_backward_params), sizeof(fa3_options)});
static_assert(std::span(kMergeLayouts).back() == Layout{sizeof(fa3_merge_params), 0});
static_assert(std::span(kAppendLayouts).back() == Layout{sizeof(fa3_append_params), 0});
static_assert(std::span(kMlaForwardLayouts).back() == Layout{sizeof(fa3_mla_forward_params), 0});
static_assert(std::span(kMlaBackwardLayouts).back() == Layout{sizeof(fa3_mla_backward_params), 0});
static_assert(std::span(kMlaAppendLayouts).back() == Layout{sizeof(fa3_mla_append_params), 0});
static_assert(std::span(kMlaGatherLayouts).back() == Layout{sizeof(fa3_mla_gather_params), 0});
static_assert(std::span(kRingLayouts).back() == Layout{sizeof(fa3_ring), 0});
static_assert(std::span(kQuantizeLayouts).back() == Layout{sizeof(fa3_quantize_params), 0});

// Copies a caller's struct of any released layout into `newest`, a struct of the last layout that
// holds the defaults: fields that the caller does not know keep them. `name` is the argument's.
Status widen(const char* name, const void* given, std::span<const Layout> layouts, void* newest);

// Fills a caller's struct of `struct_size` bytes with its part of `newest`, a struct of the last
// layout that holds the defaults.
void narrow(const void* newest, std::span<const Layout> layouts, void* given, size_t struct_size);

}  // namespace fa3::api
