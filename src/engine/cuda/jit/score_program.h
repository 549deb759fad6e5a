// SPDX-License-Identifier: Apache-2.0
// A score function of the caller's among the functions of score_function.cuh, as text for NVRTC;
// and what a kernel is given for it. An engine says which kernel calls them. Next: kernel_cache.h.
#pragma once

#include "core/problem.h"
#include "engine/cuda/jit/config_text.h"
#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/jit/program_key.h"
#include "engine/cuda/softmax/score_captures.h"

namespace fa3::cuda {

// The kernel of an engine that a program has.
struct EngineKernel {
  std::string includes;
  std::string text;    // in the engine's namespace
  const char* engine;  // its name
  std::string architecture;
  EmbeddedHeaders headers;
};

constexpr const char* type_name(ScoreKind) {
  return "ScoreKind";
}
constexpr const char* type_name(ElementKind) {
  return "ElementKind";
}

constexpr auto fields_of(const ScoreTraits& traits) {
  const auto& [kind, element, tensor, step, starts_products, loads_tile, repeats_tangents,
               keeps_scores, stores_gradient] = traits;
  return std::tie(kind, element, tensor, step, starts_products, loads_tile, repeats_tangents,
                  keeps_scores, stores_gradient);
}
static_assert(has_all_fields<ScoreTraits>());

// What the traits of all kernels have. An engine adds what its kernel makes of it.
ScoreTraits traits_of(const fa3_score_function& score);

inline bool has_element(const fa3_score_function& score, int32_t kind) {
  return score.element.kind == kind;
}

// Whether a backward with these gradients keeps something of each score (KeptScores).
inline bool keeps_scores_or_slopes(const fa3_score_function& score) {
  return score.slope != nullptr || traits_of(score).keeps_scores;
}

// The tensor whose gradient is that of scores, and is stored; null: there is none.
const fa3_captured_tensor* tensor_with_stored_gradient(const fa3_score_function& score);

// Adds what programs follow from: the function's texts, and what a kernel knows of it.
ProgramKey& add_score(ProgramKey& key, const fa3_score_function& score, const ScoreTraits& traits);

template <Config T>
ProgramKey key_of(const char* kernel, const T& config) {
  ProgramKey key;
  key.add(kernel);
  for_each_number(config, [&](int64_t number) { key.add(number); });
  return key;
}
template <Config T>
ProgramKey key_of(const char* kernel, const T& config, const fa3_score_function& score,
                  const ScoreTraits& traits) {
  ProgramKey key = key_of(kernel, config);
  return add_score(key, score, traits);
}

// The program of a forward kernel with a gate or max_logit (softmax/outputs.h), and no function.
Program output_program(const EngineKernel& kernel);

Program forward_program(const fa3_score_function& score, const ScoreTraits& traits,
                        const EngineKernel& kernel);

// The program of a backward's main kernel; its other kernels know nothing of scores.
Program backward_program(const fa3_score_function& score, const ScoreTraits& traits,
                         const EngineKernel& kernel);

ScoreCaptures captures_of(const fa3_score_function& score);
ScoreGradientParams gradients_of(const fa3_score_function& score, float scale);

}  // namespace fa3::cuda
