// SPDX-License-Identifier: Apache-2.0
// A kernel's config as text for NVRTC and as numbers of a key. A config's header of text (in its
// engine's config/) has two things that are found here by argument-dependent lookup:
//
//     constexpr auto fields_of(const Config& config);  // all members, bound by name, as a tuple
//     constexpr const char* type_name(Enum);           // of each scoped enum among them
//
// A structured binding names each member, so a new one does not compile until it is added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/outputs.h"

namespace fa3::cuda {

constexpr const char* type_name(Element) {
  return "Element";
}

template <class T>
concept Config = requires(const T& config) {
  fields_of(config);
};

constexpr const char* type_name(Gate) {
  return "Gate";
}
constexpr const char* type_name(GateType) {
  return "GateType";
}

struct AnyField {
  template <class T>
  constexpr operator T() const;
};

template <class T, size_t... I>
constexpr bool takes_fields(std::index_sequence<I...>) {
  return requires {
    T{(void(I), AnyField{})...};
  };
}

// How many members an aggregate has.
template <class T, size_t N = 0>
constexpr size_t num_fields() {
  if constexpr (takes_fields<T>(std::make_index_sequence<N + 1>())) {
    return num_fields<T, N + 1>();
  } else {
    return N;
  }
}

// Whether fields_of() has all members: one may be bound and then left out.
template <Config T>
constexpr bool has_all_fields() {
  return num_fields<T>() == std::tuple_size_v<decltype(fields_of(std::declval<T>()))>;
}

constexpr auto fields_of(const Outputs& outputs) {
  const auto& [gate, gate_type, max_logit] = outputs;
  return std::tie(gate, gate_type, max_logit);
}
static_assert(has_all_fields<Outputs>());

template <class T, class Visit>
constexpr void for_each_number(const T& value, const Visit& visit) {
  if constexpr (Config<T>) {
    std::apply([&](const auto&... field) { (for_each_number(field, visit), ...); },
               fields_of(value));
  } else {
    visit(int64_t(value));
  }
}

// An initializer: {Element(1), 128, true, {64, 64}}.
template <class T>
std::string text_of(const T& value) {
  if constexpr (Config<T>) {
    std::string text;
    std::apply(
        [&](const auto&... field) { ((text += (text.empty() ? "" : ", ") + text_of(field)), ...); },
        fields_of(value));
    return "{" + text + "}";
  } else if constexpr (std::is_enum_v<T>) {
    return type_name(value) + ("(" + std::to_string(int(value)) + ")");
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else {
    return std::to_string(value);
  }
}

}  // namespace fa3::cuda
