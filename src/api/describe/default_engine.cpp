// SPDX-License-Identifier: Apache-2.0
#include "api/describe/default_engine.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "engine/engine.h"
#include "process/first_use.h"

namespace fa3::api {
namespace {

struct Named {
  const char* name = nullptr;  // null: the environment names none
  const Engine* engine = nullptr;
};

Named engine_of_environment() {
  const char* name = std::getenv("FA3_ENGINE");
  if (name == nullptr || *name == '\0' || std::string_view(name) == "auto") return {};
  for (const Engine* engine : engines()) {
    if (std::string_view(engine->name) == name) return {name, engine};
  }
  return {name, nullptr};
}

}  // namespace

Status default_engine(int32_t memory, fa3_engine_id* engine) {
  static constinit FirstUse<Named> first_use;
  const Named named = first_use.get(engine_of_environment);
  *engine = FA3_ENGINE_AUTO;
  if (named.name == nullptr) return {};
  if (named.engine == nullptr) {
    std::string names = "auto";
    for (const Engine* known : engines()) names += std::string(", ") + known->name;
    return invalid("the environment's FA3_ENGINE: expected one of ", names, ", got ", named.name);
  }
  if (named.engine->memory == memory) *engine = named.engine->id;
  return {};
}

}  // namespace fa3::api
