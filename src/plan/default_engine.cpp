// SPDX-License-Identifier: Apache-2.0
#include "plan/default_engine.h"

#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "engine/engine.h"
#include "plan/choose.h"
#include "process/first_use.h"

namespace fa3 {
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

const Named& named_engine() {
  static constinit FirstUse<Named> first_use;
  return first_use.get(engine_of_environment);
}

}  // namespace

Status default_engine(int32_t memory, fa3_engine_id* engine) {
  const Named& named = named_engine();
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

std::string why_not_default_engine(fa3_engine_id engine, int32_t memory) {
  const Named& named = named_engine();
  const bool passed_over = named.engine != FA3_ENGINE_AUTO && named.memory != memory;
  if (engine != FA3_ENGINE_AUTO || !passed_over) return "";
  return concat("; not ", named.name,
                ", which the environment's FA3_ENGINE names: it takes no tensors in this memory");
}

std::string why_default_engine(fa3_engine_id engine) {
  if (engine == FA3_ENGINE_AUTO || engine != named_engine().engine) return "";
  return concat("; the environment's FA3_ENGINE names ", named_engine().name);
}

}  // namespace fa3
