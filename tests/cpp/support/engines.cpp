// SPDX-License-Identifier: Apache-2.0
#include "support/engines.h"

#include <cstdlib>
#include <ostream>
#include <string_view>

namespace fa3::test {
namespace {

constexpr EngineUnderTest kStandard{
    .name = "standard", .id = FA3_ENGINE_STANDARD, .rounds_scores = true, .exact = false};
constexpr EngineUnderTest kEngines[] = {
    {.name = "reference", .id = FA3_ENGINE_REFERENCE, .rounds_scores = false, .exact = true},
    kStandard,
    {.name = "cpu", .id = FA3_ENGINE_CPU, .rounds_scores = false, .exact = false},
};

bool runs_here(const EngineUnderTest& engine) {
  fa3_engine_info info;
  for (int32_t i = 0; fa3_engine(i, &info) == FA3_OK; ++i) {
    if (info.available && std::string_view(info.name) == engine.name) return true;
  }
  return false;
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
    if (wanted && runs_here(engine)) found.push_back(engine);
  }
  return found;
}

EngineUnderTest baseline() {
  return kStandard;
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
