// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/jit/score_program.h"

#include "core/error.h"

namespace fa3::cuda {
namespace {

static_assert(int(ScoreKind::kRowLines) == FA3_SCORE_ROW_LINES);
static_assert(int(ElementKind::kClampedRun) == FA3_ELEMENT_CLAMPED_RUN);

// A function of a class of score_function.cuh.
std::string definition(const char* declaration, const char* name, const char* body) {
  return concat("__device__ __forceinline__ ", declaration, " {\n#line 1 \"", name, "\"\n", body,
                "\n}\n");
}

const char* declaration_of_text(int32_t kind) {
  switch (kind) {
    case FA3_SCORE_ADDED:
      return "float ScoreFunction::text(ScoreNumber x, int b, int h, int q_idx, int kv_idx) const";
    case FA3_SCORE_KEY_TERM:
      return "float ScoreFunction::text(int b, int h, int kv_idx) const";
    case FA3_SCORE_ROW_LINE:
    case FA3_SCORE_ROW_LINES:
      return "ScoreLine ScoreFunction::text(int b, int h, int q_idx, int kv_idx) const";
    default:
      return "float ScoreFunction::text(float score, ScoreNumber x, int b, int h, int q_idx, int "
             "kv_idx) const";
  }
}

const char* arguments_of_indices(int32_t kind) {
  if (kind == FA3_ELEMENT_OF_SCORE) return "";
  return kind == FA3_ELEMENT_OF_KEY ? ", int q_idx" : ", int q_idx, int kv_idx";
}

std::string definition_of_score(const fa3_score_function& score) {
  const std::string text =
      concat("template <ScoreKind>\n",
             definition(declaration_of_text(score.kind), "score function", score.text));
  if (has_element(score, FA3_ELEMENT_NONE)) return text;
  const std::string indices =
      concat("typename At::Result ScoreFunction::indices(const At& at, int b, int h",
             arguments_of_indices(score.element.kind), ") const");
  return concat(text, "template <class At>\n",
                definition(indices.c_str(), "score indices", score.element.indices));
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

// before: the headers, which have what behind is written with.
Program program_of(const EngineKernel& kernel, const std::string& before,
                   const std::string& behind) {
  return {.text = concat(before, kernel.includes, behind, "#line 1 \"kernel\"\nnamespace fa3::",
                         kernel.engine, " {\n", kernel.text, "}\n"),
          .architecture = kernel.architecture,
          .options = {"-std=c++20", "-default-device"},
          .headers = kernel.headers};
}

Program program_of(const fa3_score_function& score, const ScoreTraits& traits,
                   const std::string& functions, const EngineKernel& kernel) {
  const char* const element = has_element(score, FA3_ELEMENT_NONE) ? "float" : score.element.type;
  return program_of(
      kernel, concat("#define FA3_SCORE_FUNCTION ScoreOf<", element, ">{", text_of(traits), "}\n"),
      concat("namespace fa3::cuda {\n", functions, "}\n"));
}

}  // namespace

ScoreTraits traits_of(const fa3_score_function& score) {
  return {.kind = ScoreKind(score.kind),
          .element = ElementKind(score.element.kind),
          .tensor = score.element.tensor,
          .step = score.element.step,
          .repeats_tangents = score.repeats_tangents != 0,
          .keeps_scores = score.gradients != nullptr && score.gradients_use_score != 0};
}

const fa3_captured_tensor* tensor_with_stored_gradient(const fa3_score_function& score) {
  if (has_element(score, FA3_ELEMENT_NONE) || score.element.stores_gradient == 0) return nullptr;
  const fa3_captured_tensor& tensor = score.tensors[score.element.tensor];
  return tensor.gradient != nullptr ? &tensor : nullptr;
}

ProgramKey& add_score(ProgramKey& key, const fa3_score_function& score, const ScoreTraits& traits) {
  for_each_number(traits, [&](int64_t number) { key.add(number); });
  key.add(score.text).add(score.slope).add(score.gradients);
  if (has_element(score, FA3_ELEMENT_NONE)) return key;
  return key.add(score.element.type).add(score.element.indices);
}

Program output_program(const EngineKernel& kernel) {
  Program program = program_of(kernel, "", "");
  program.what = "kernel with gate or max_logit";
  return program;
}

Program forward_program(const fa3_score_function& score, const ScoreTraits& traits,
                        const EngineKernel& kernel) {
  return program_of(score, traits, definition_of_score(score), kernel);
}

Program backward_program(const fa3_score_function& score, const ScoreTraits& traits,
                         const EngineKernel& kernel) {
  constexpr char kPlace[] = "int b, int h, int q_idx, int kv_idx)";
  const std::string slope = concat("float ScoreFunction::slope(float score, ", kPlace, " const");
  const std::string gradients = concat("void ScoreGradient::of(float gradient, float ",
                                       traits.keeps_scores ? "score, " : ", ", kPlace);
  return program_of(score, traits,
                    definition_of_score(score) +
                        definition(slope.c_str(), "score slope",
                                   score.slope == nullptr ? "return 1.0f;" : score.slope) +
                        definition(gradients.c_str(), "score gradients",
                                   score.gradients == nullptr ? "" : score.gradients),
                    kernel);
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
