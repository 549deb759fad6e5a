// SPDX-License-Identifier: Apache-2.0
//
// The edge of the C ABI: callers' structs of any version come in, codes and sentences go out, and
// nothing is thrown.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include <exception>
#include <new>
#include <string_view>

#include "api/layout.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "core/macros.h"

namespace fa3::api {

// Keeps the sentence for the thread's fa3_last_error().
fa3_status remember(int code, std::string_view sentence) noexcept;
const char* last_error() noexcept;

// Runs body() -> Status at the boundary: nothing may be thrown across it, and no floating-point
// environment of the caller's comes in.
template <class Body>
fa3_status at_boundary(Body&& body) noexcept {
  const DefaultFloatEnvironment environment;
  try {
    const Status status = body();
    return remember(static_cast<int>(status.code()), status.message());
  } catch (const std::bad_alloc&) {
    return remember(FA3_OUT_OF_MEMORY, "out of memory while preparing the call");
  } catch (const std::exception&) {
    return remember(FA3_INTERNAL_ERROR, "a defect of fa3: an unexpected exception");
  } catch (...) {
    return remember(FA3_INTERNAL_ERROR, "a defect of fa3: an unknown exception");
  }
}

template <class Params>
Params defaults() {
  Params params{};
  params.struct_size = sizeof(Params);
  if constexpr (requires { params.options; }) {
    params.options.scale = FA3_SCALE_AUTO;
    params.options.window_left = FA3_WINDOW_UNBOUNDED;
    params.options.window_right = FA3_WINDOW_UNBOUNDED;
  }
  if constexpr (requires { params.lse_with_sink; }) {
    params.scale = FA3_SCALE_AUTO;
    params.lse_with_sink = 1;
  }
  return params;
}

template <class Params>
void init_sized(Params* params, size_t struct_size) {
  if (params == nullptr) return;
  const Params newest = defaults<Params>();
  narrow(&newest, layouts_of<Params>(), params, struct_size);
}

// Runs body(params) -> Status with the caller's params as this version has them.
template <class Params, class Body>
Status with_newest(const char* name, const Params* params, Body&& body) {
  if (params == nullptr) return invalid(name, ": expected a struct, got a null pointer");
  if (params->struct_size == sizeof(Params)) return body(*params);
  Params newest = defaults<Params>();
  FA3_TRY(widen(name, params, layouts_of<Params>(), &newest));
  return body(newest);
}

template <class Params, class Body>
fa3_status with_params(const Params* params, Body&& body) {
  return at_boundary([&] { return with_newest("params", params, body); });
}

}  // namespace fa3::api
