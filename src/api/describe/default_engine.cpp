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
  const char* name = nullptr;              // null: the environment names none
  fa3_engine_id engine = FA3_ENGINE_AUTO;  // AUTO: nobody's name
  int32_t memory = 0;
};

Named engine_of_environment() {
  const char* name = std::getenv("FA3_ENGINE");
  if (name == nullptr || *name == '\0' || std::string_view(name) == "auto") return {};
  for (const Engine* engine : engines()) {
    if (std::string_view(engine->name) == name) return {name, engine->id, engine->memory};
  }
  for (const AbsentEngine& absent : absent_engines()) {
    if (std::string_view(absent.name) == name) return {name, absent.id, FA3_CUDA};
  }
  return {.name = name};
}

}  // namespace

Status default_engine(int32_t memory, fa3_engine_id* engine) {
  static constinit FirstUse<Named> first_use;
  const Named named = first_use.get(engine_of_environment);
  *engine = FA3_ENGINE_AUTO;
  if (named.name == nullptr) return {};
  if (named.engine == FA3_ENGINE_AUTO) {
    std::string names = "auto";
    for (const Engine* known : engines()) names += std::string(", ") + known->name;
    for (const AbsentEngine& absent : absent_engines()) names += std::string(", ") + absent.name;
    return invalid("the environment's FA3_ENGINE: expected one of ", names, ", got ", named.name);
  }
  if (named.memory == memory) *engine = named.engine;
  return {};
}

}  // namespace fa3::api
