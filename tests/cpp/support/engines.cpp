// SPDX-License-Identifier: Apache-2.0
#include "support/engines.h"

#include <cstdlib>
#include <ostream>
#include <string_view>

namespace fa3::test {
namespace {

constexpr EngineUnderTest kStandard{
    .name = "standard", .id = FA3_ENGINE_STANDARD, .rounds_scores = true};
constexpr EngineUnderTest kEngines[] = {
    {.name = "reference", .id = FA3_ENGINE_REFERENCE, .exact = true},
    kStandard,
    {.name = "cpu", .id = FA3_ENGINE_CPU},
    {.name = "hopper",
     .id = FA3_ENGINE_HOPPER,
     .memory = FA3_CUDA,
     .rows_apart = false,
     .multiplies_e4m3 = true,
     .large = 1e35f},
    {.name = "ampere",
     .id = FA3_ENGINE_AMPERE,
     .memory = FA3_CUDA,
     .rows_apart = false,
     .merges_by_lse = true,
     .large = 1e35f},
};

// What the library says of an engine; not available and "..." if it has none of that name.
fa3_engine_info info_of(std::string_view name) {
  fa3_engine_info info;
  for (int32_t i = 0; fa3_engine(i, &info) == FA3_OK; ++i) {
    if (info.name == name) return info;
  }
  return {.name = nullptr, .available = 0, .detail = "this build has no such engine"};
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

std::vector<EngineUnderTest> engines_under_test() {
  const char* only = std::getenv("FA3_TEST_ENGINE");
  std::vector<EngineUnderTest> found;
  for (const EngineUnderTest& engine : kEngines) {
    const bool wanted = only == nullptr || std::string_view(only) == engine.name;
    if (wanted && info_of(engine.name).available) found.push_back(engine);
  }
  return found;
}

EngineUnderTest baseline() {
  return kStandard;
}

std::string engine_detail(const char* name) {
  return info_of(name).detail;
}

std::string engine_name(const EngineUnderTest& engine) {
  return engine.name;
}

std::ostream& operator<<(std::ostream& out, const EngineUnderTest& engine) {
  return out << engine.name;
}

Effort effort() {
  if (is_set("FA3_TEST_FULL")) return Effort::full;
  return is_set("FA3_TEST_QUICK") ? Effort::quick : Effort::normal;
}

}  // namespace fa3::test
