// SPDX-License-Identifier: Apache-2.0
#include "support/runs/ability.h"

#include <cctype>
#include <cstdio>
#include <map>
#include <mutex>
#include <stdexcept>

#include "support/runs/run.h"

namespace fa3::test {
namespace {

struct Count {
  int times = 0;
  std::string example;
};

std::mutex mutex;
std::map<std::string, Count> left_out;

// What a question's answer means.
std::string refusal(const Case& c, fa3_status status) {
  if (status == FA3_OK) return "";
  if (status == FA3_UNSUPPORTED) return fa3_last_error();
  throw std::logic_error(describe(c) + ": " + fa3_status_name(status) + ": " + fa3_last_error());
}

std::string without_numbers(const std::string& reason) {
  std::string kind;
  for (char c : reason) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
  }
  return kind;
}

}  // namespace

std::string refusal(const EngineUnderTest& engine, const Case& c, Pass pass) {
  return refusal(c, pass == Pass::forward ? ask_forward(engine, c) : ask_backward(engine, c));
}

std::string refusal(const EngineUnderTest& engine, const Case& c, const Inputs& inputs) {
  return refusal(c, ask_forward(engine, c, inputs));
}

void leave_out(const std::string& reason) {
  const std::scoped_lock lock(mutex);
  Count& count = left_out[without_numbers(reason)];
  if (count.times++ == 0) count.example = reason;
}

void print_left_out() {
  for (const auto& [kind, count] : left_out) {
    std::printf("left out %d x %s\n", count.times, count.example.c_str());
  }
}

}  // namespace fa3::test
