// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/jit/score_program.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace fa3::cuda {
namespace {

// A function of a class of score_function.cuh.
std::string definition(const char* declaration, const char* body) {
  return concat("__device__ __forceinline__ ", declaration, " {\n#line 1 \"score function\"\n",
                body, "\n}\n");
}

std::string definition_of_score(const fa3_score_function& score) {
  return definition(
      "float ScoreFunction::of(float score, int b, int h, int q_idx, int kv_idx) const",
      score.text);
}

// Functions that load would load twice.
bool looks_at_tangents(const fa3_score_function& score) {
  return score.num_tensors == 0 && std::strstr(score.text, "tangent(") != nullptr;
}

// Whether each two neighbours along the last dimension lie in one word, if they have 16 bits each.
bool has_pairs(const fa3_captured_tensor& t) {
  if (t.rank == 0 || t.stride[t.rank - 1] != 1 || reinterpret_cast<uintptr_t>(t.data) % 4 != 0) {
    return false;
  }
  for (int dim = 0; dim + 1 < t.rank; ++dim) {
    if (t.stride[dim] % 2 != 0) return false;
  }
  return true;
}

constexpr char kLoadOfKey[] = "load_of_key<", kLoadOfScore[] = "load_of_score<";

bool starts_with(const char* text, const char* begin) {
  return std::strncmp(text, begin, std::strlen(begin)) == 0;
}

// Where the text loads of keys or scores; null: nowhere, or more than once.
const char* only_load(const char* text) {
  const char* found = nullptr;
  for (const char* at = text; (at = std::strstr(at, "load_of_")) != nullptr; ++at) {
    if (!starts_with(at, kLoadOfKey) && !starts_with(at, kLoadOfScore)) continue;
    if (found != nullptr) return nullptr;
    found = at;
  }
  return found;
}

// load_of_key<T, n>(...): n; -1: that is not what stands there.
int tensor_of(const char* load) {
  const char* const number = std::strchr(load, ',');
  return number == nullptr ? -1 : std::atoi(number + 1);
}

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// How often a word stands in the text, and is no namespace: "namespace score;", "score::exp(".
int count_word(std::string_view text, std::string_view word) {
  int count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) {
    const std::string_view before = text.substr(0, at), behind = text.substr(at + word.size());
    const bool is_whole = (before.empty() || !is_of_name(before.back())) &&
                          (behind.empty() || !is_of_name(behind.front()));
    count += is_whole && !before.ends_with("namespace ") && !behind.starts_with("::") ? 1 : 0;
  }
  return count;
}

bool stands_once(std::string_view text, std::string_view part) {
  const size_t at = text.find(part);
  return at != text.npos && text.find(part, at + 1) == text.npos;
}

Program program_of(const fa3_score_function& score, const std::string& functions,
                   const ScoreKernel& kernel) {
  return {.text = concat("#define FA3_SCORE_FUNCTION\n",
                         looks_at_tangents(score) ? "#define FA3_SCORE_HAS_TANGENT\n" : "",
                         kernel.includes, "namespace fa3::cuda {\n", functions,
                         "}\n#line 1 \"kernel\"\nnamespace fa3::", kernel.engine, " {\n",
                         kernel.text, "}\n"),
          .architecture = kernel.architecture,
          .options = {"-std=c++20", "-default-device"},
          .headers = kernel.headers};
}

}  // namespace

bool gradients_name_score(const fa3_score_function& score) {
  return score.gradients != nullptr && count_word(score.gradients, "score") > 0;
}

int tensor_of_scores(const fa3_score_function& score) {
  const char* const load = only_load(score.text);
  return load != nullptr && starts_with(load, kLoadOfScore) ? tensor_of(load) : -1;
}

AddedToScore added_to_score(const fa3_score_function& score) {
  constexpr char kReturn[] = "return score + ";
  const std::string_view text = score.text;
  const size_t at = text.find(kReturn);
  if (at == text.npos || count_word(text, "return") != 1 || count_word(text, "score") != 1) {
    return AddedToScore::kNotAlone;
  }
  std::string_view added = text.substr(at + std::strlen(kReturn));
  added = added.substr(0, added.find(';'));
  const bool is_name = !added.empty() && std::ranges::all_of(added, is_of_name);
  const bool is_call = added.find(')') == added.size() - 1;
  if (is_call && added.starts_with("linear(")) return AddedToScore::kLinear;
  if (is_call && added.starts_with("piecewise_linear(")) return AddedToScore::kPiecewiseLinear;
  if (is_call && added.starts_with("key_term(")) return AddedToScore::kKeyTerm;
  if (!is_name) return AddedToScore::kNotAlone;
  const bool has_run = stands_once(text, "load_run<");
  const bool has_clamped_run = stands_once(text, "load_clamped_run<");
  if (has_run == has_clamped_run) return AddedToScore::kOther;
  return has_run ? AddedToScore::kRun : AddedToScore::kClampedRun;
}

ProgramKey& add_score(ProgramKey& key, const fa3_score_function& score) {
  key.add(score.text).add(score.slope).add(score.gradients);
  return key.add(score.may_hide != 0).add(score.num_tensors == 0);
}

std::string definition_of_pairs(const fa3_score_function& score) {
  const char* const load = only_load(score.text);
  const int tensor = load == nullptr ? -1 : tensor_of(load);
  return tensor < 0 ? "" : concat("#define FA3_SCORE_PAIRS ", tensor, "\n");
}

Program forward_program(const fa3_score_function& score, const ScoreKernel& kernel) {
  return program_of(score, definition_of_score(score), kernel);
}

Program backward_program(const fa3_score_function& score, const ScoreKernel& kernel) {
  const char* const slope = score.slope == nullptr ? "return 1.0f;" : score.slope;
  ScoreKernel with_definitions = kernel;
  if (gradients_name_score(score)) {
    with_definitions.includes = "#define FA3_SCORE_KEEPS_SCORES\n" + kernel.includes;
  }
  return program_of(
      score,
      definition_of_score(score) +
          definition("float ScoreFunction::slope(float score, int b, int h, int q_idx, int kv_idx) "
                     "const",
                     slope) +
          definition("void ScoreGradient::of(float gradient, float score, int b, int h, "
                     "int q_idx, int kv_idx)",
                     score.gradients == nullptr ? "" : score.gradients),
      with_definitions);
}

ScoreCaptures captures_of(const fa3_score_function& score) {
  ScoreCaptures captures{};
  for (int i = 0; i < score.num_tensors; ++i) {
    const fa3_captured_tensor& from = score.tensors[i];
    ScoreCaptures::Tensor& to = captures.tensors[i];
    to.data = from.data;
    for (int dim = 0; dim < from.rank; ++dim) {
      to.extent[dim] = int(from.shape[dim]);
      to.stride[dim] = int(from.stride[dim]);
    }
    to.extent_of_pairs = has_pairs(from) ? to.extent[from.rank - 1] : 0;
  }
  return captures;
}

ScoreGradientParams gradients_of(const fa3_score_function& score, float scale) {
  ScoreGradientParams params{.captures = captures_of(score), .gradients = {}, .scale = scale};
  for (int i = 0; i < score.num_tensors; ++i) {
    const fa3_captured_tensor& from = score.tensors[i];
    params.gradients[i].data = from.gradient;
    int stride = 1;
    for (int dim = from.rank - 1; dim >= 0; --dim) {
      params.gradients[i].stride[dim] = stride;
      stride *= int(from.shape[dim]);
    }
  }
  return params;
}

}  // namespace fa3::cuda
