// SPDX-License-Identifier: Apache-2.0
// A score function of the caller's among the functions of score_function.cuh, as text for NVRTC;
// and what a kernel is given for it. An engine says which kernel calls them. Next: kernel_cache.h.
#pragma once

#include "core/problem.h"
#include "engine/cuda/jit/config_text.h"
#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/jit/program_key.h"
#include "engine/cuda/softmax/score_gradient_params.h"

namespace fa3::cuda {

// The kernel of an engine that a program has.
struct ScoreKernel {
  std::string includes;
  std::string text;    // in the engine's namespace
  const char* engine;  // its name
  std::string architecture;
  EmbeddedHeaders headers;
};

// The tensor of which load_of_score() asks, if the text has it once. -1: there is none.
int tensor_of_scores(const fa3_score_function& score);

// What the function adds to the score, if it does nothing else with it and says so: its text names
// the score in its one return alone, `return score + name;`, or a call in place of the name.
enum class AddedToScore {
  kNotAlone,         // the function does something else, or does not say what
  kLinear,           // linear(...)
  kPiecewiseLinear,  // piecewise_linear(...)
  kKeyTerm,          // key_term(...)
  kRun,              // what is loaded by load_run(), once,
  kClampedRun,       // or by load_clamped_run()
  kOther
};
AddedToScore added_to_score(const fa3_score_function& score);

// Whether the gradients of captured tensors name the score.
bool gradients_name_score(const fa3_score_function& score);

// Whether a backward with these gradients keeps something of each score (KeptScores).
inline bool keeps_scores_or_slopes(const fa3_score_function& score) {
  return score.slope != nullptr || gradients_name_score(score);
}

// Adds what programs follow from the score function, except what an engine learns from captured
// tensors.
ProgramKey& add_score(ProgramKey& key, const fa3_score_function& score);

template <Config T>
ProgramKey key_of(const char* kernel, const T& config, const fa3_score_function& score) {
  ProgramKey key;
  key.add(kernel);
  for_each_number(config, [&](int64_t number) { key.add(number); });
  return add_score(key, score);
}

// Which tensor load_of_key() or load_of_score() may load ahead from, for a kernel that does: if the
// text has it once, for registers do not last for more. Empty: none.
std::string definition_of_pairs(const fa3_score_function& score);

Program forward_program(const fa3_score_function& score, const ScoreKernel& kernel);

// The same for a main kernel of a backward, whose other kernels know nothing of scores.
Program backward_program(const fa3_score_function& score, const ScoreKernel& kernel);

ScoreCaptures captures_of(const fa3_score_function& score);
ScoreGradientParams gradients_of(const fa3_score_function& score, float scale);

}  // namespace fa3::cuda
