// SPDX-License-Identifier: Apache-2.0
//
// How the model breaks off: with a sentence, thrown through the kernel's code.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "lanes.h"

namespace fa3::machine {

// The name of a modelled thread.
inline std::string name(int thread) {
  const std::string warp = "warp " + std::to_string(thread / kLanes);
  return kAllLanes ? warp + ", lane " + std::to_string(thread % kLanes) : warp;
}

struct ProtocolError : std::runtime_error {
  using runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_convertible_v<decltype(part), std::string>) {
      text += part;
    } else {
      text += std::to_string(part);
    }
  };
  (add(parts), ...);
  throw ProtocolError(text);
}

}  // namespace fa3::machine
