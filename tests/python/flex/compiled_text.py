# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of a score function, compiled as plain C++, and the graph it was written of."""

import ctypes
import shutil
import subprocess

import flex_functions as functions  # skips without torch
import pytest
import torch
from builds import ROOT

from fa3.flex.function import pieces
from fa3.flex.function.interpret import evaluate
from fa3.flex.function.pieces import NO_GRADIENTS, pieces_of
from fa3.flex.functions import function_of

COMPILER = shutil.which("g++")
HEADS, ROWS, ERROR = 3, 20, 3e-6

PROGRAM = """
#include <cmath>
#include <cstdint>
using namespace std;
#define FA3_SCORE_FUNCTION %s
#include "engine/cuda/softmax/score_captures.h"
#undef FA3_SCORE_FUNCTION  // what warps do together is left out
#include "engine/cuda/softmax/score_gradient.cuh"
namespace fa3::cuda {
%s
inline float ScoreFunction::slope(float score, int b, int h, int q_idx, int kv_idx) const {
%s}
inline void ScoreGradient::of(float gradient, float score, int b, int h, int q_idx, int kv_idx) {
%s}
}
using namespace fa3::cuda;
// What kernels compute at each place: for_each(compute) fills the results.
template <class Compute>
void for_each(const ScoreCaptures* captures, const float* scores, const int* places, float* results,
              int count, const Compute& compute) {
  const ScoreFunction function{*captures};
  for (int i = 0; i < count; ++i, places += 4) {
    results[i] = compute(function, scores[i], places[0], places[1], places[2], places[3]);
  }
}
extern "C" void compute(const ScoreCaptures* captures, const float* scores, const int* places,
                        float* results, int count) {
  for_each(captures, scores, places, results, count,
           [](const ScoreFunction& f, float score, int b, int h, int q, int k) {
    return f.of(score, b, h, q, k);
  });
}
"""
FURTHER = """
extern "C" void compute_further(const ScoreCaptures* captures, const float* scores,
                                const int* places, float* results, int count) {
  for_each(captures, scores, places, results, count,
           [](const ScoreFunction& f, float score, int b, int h, int q, int k) -> float {
%s
  });
}
"""
# By the words of two neighbours each, where a tensor has them.
BY_PAIRS = """
    const int first = k & ~1;
    if (!f.has_pairs(first, 2) || f.has_pairs(first + 1, 1)) return NAN;
    const void* place = f.place(ScoreFunction::Address{f, q, first}, b, h, q, first);
    const uint32_t word = fa3::cuda::score::load_pair(place);
    return f.of_element(element_of_pair(word, first != k), score, b, h, q, k);
"""
# By where the elements of a key and of some before it are.
BY_RUNS = """
    const int first = k < 5 ? 0 : k - 5;
    const Run run = f.place(ScoreFunction::RunAt{f, k - first}, b, h, q, first);
    if (!run.is_inside) return NAN;
    return f.of_element(run.element(k - first), score, b, h, q, k);
"""
# By where the elements of a key and of one some keys before it are.
BY_CLAMPED_RUNS = """
    const int first = k < 5 ? 0 : k - 5, keys = k - first;
    const ScoreFunction::ClampedRunAt at{f};
    const ClampedRun run = f.place(at, b, h, q, first), last = f.place(at, b, h, q, k);
    if (!run.goes_on(last, keys) && !run.stays(last)) return NAN;
    const Run known{run.element, true};
    return f.of_element(known.element(run.goes_on(last, keys) ? keys : 0), score, b, h, q, k);
"""
STEPS_OF_LINES = """
    return f.line(b, h, q, k).step;
"""
DIFFERENTIATE = """
extern "C" void differentiate(const fa3::cuda::ScoreGradientParams* params, const float* scores,
                              const float* gradients, const int* places, float* slopes, int count) {
  using Gradient = fa3::cuda::ScoreGradient;
  const auto take = [](Gradient::Sum& sum) {
    if (sum.place != nullptr) fa3::cuda::add_to_memory(sum.place, sum.value);
    sum = {};
  };
  Gradient gradient(*params);
  for (int i = 0; i < count; ++i, places += 4) {
    slopes[i] = gradient.slope(scores[i], places[0], places[1], places[2], places[3]);
    gradient.key = i & 1;
    gradient.counts = gradients[i] != 0.0f;
    gradient.of(gradients[i], scores[i], places[0], places[1], places[2], places[3]);
    for (int n = 0; n < fa3::cuda::ScoreCaptures::kMost; ++n) {
      take(gradient.of_tile[n]);
      take(gradient.of_key[i & 1][n]);
    }
  }
}
"""


class Captured(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("extent", ctypes.c_int * 4),
        ("stride", ctypes.c_int * 4),
        ("extent_of_pairs", ctypes.c_int),
    )


class Gradient(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int * 4))


class GradientParams(ctypes.Structure):
    _fields_ = (("captures", Captured * 8), ("gradients", Gradient * 8), ("scale", ctypes.c_float))


def captures_of(tensors):
    found = (Captured * 8)()
    for to, tensor in zip(found, tensors, strict=False):
        to.data = tensor.data_ptr()
        to.extent[: tensor.ndim] = list(tensor.shape)
        to.stride[: tensor.ndim] = tensor.stride()
    return found


RETURNED = {  # and what the text's arguments begin with
    pieces.ANY: ("float", "float score, ScoreNumber x, int b, int h, int q_idx, int kv_idx"),
    pieces.ADDED: ("float", "ScoreNumber x, int b, int h, int q_idx, int kv_idx"),
    pieces.KEY_TERM: ("float", "int b, int h, int kv_idx"),
    pieces.ROW_LINE: ("ScoreLine", "int b, int h, int q_idx, int kv_idx"),
    pieces.ROW_LINES: ("ScoreLine", "int b, int h, int q_idx, int kv_idx"),
}
INDICES = {
    pieces.OF_SCORE: ("int b, int h", BY_PAIRS),
    pieces.OF_KEY: ("int b, int h, int q_idx", BY_PAIRS),
    pieces.RUN: ("int b, int h, int q_idx, int kv_idx", BY_RUNS),
    pieces.CLAMPED_RUN: ("int b, int h, int q_idx, int kv_idx", BY_CLAMPED_RUNS),
}


def compiled(function, folder, texts=NO_GRADIENTS):
    """As src/engine/cuda/jit/score_program.cpp puts the pieces together."""
    mine = pieces_of(function)
    element, further = mine.element, ""
    returned, arguments = RETURNED[mine.kind]
    bodies = "template <ScoreKind>\n"
    bodies += f"inline {returned} ScoreFunction::text({arguments}) const {{\n{mine.text}}}\n"
    traits = f"ScoreOf<float>{{{{.kind = ScoreKind({mine.kind})}}}}"
    if returned == "ScoreLine":
        further = FURTHER % STEPS_OF_LINES
    if element is not None:
        arguments, by_element = INDICES[element.kind]
        bodies += (
            "template <class At>\ninline typename At::Result ScoreFunction::indices("
            f"const At& at, {arguments}) const {{\n{element.indices}}}\n"
        )
        numbers = f"ElementKind({element.kind}), {element.tensor}, {element.step}"
        traits = f"ScoreOf<{element.type}>{{{{ScoreKind({mine.kind}), {numbers}}}}}"
        further = FURTHER % by_element
    of_gradient = texts.slope or "return 1.0f;\n", texts.gradients or ""
    text = PROGRAM % (traits, bodies, *of_gradient) + further + DIFFERENTIATE
    source = folder / f"score{hash(text)}.cpp"  # a library of the same name would not be loaded
    library = source.with_suffix(".so")
    source.write_text(text)
    command = [COMPILER, "-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([*command, f"-I{ROOT}/src", source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def places(count=3000):
    random = functions.generator(3)
    columns = [torch.randint(0, top, (count,), generator=random) for top in (2, HEADS, ROWS, ROWS)]
    return torch.stack(columns, -1).to(torch.int32)


def of_text(function, tensors, scores, where, folder, compute="compute"):
    results = torch.empty_like(scores)
    compute = getattr(compiled(function, folder), compute)
    captures = captures_of(tensors)
    arrays = (ctypes.c_void_p(x.data_ptr()) for x in (scores, where, results))
    compute(captures, *arrays, len(scores))
    return results


def leaves_of(scores, where):
    names = ("batch", "head", "query", "key")
    return {"score": scores.double(), **dict(zip(names, where.long().unbind(-1), strict=True))}


def of_graph(function, tensors, scores, where):
    leaves = leaves_of(scores, where)
    (results,) = evaluate(function.graph, [function.result], leaves, tensors)
    return results.expand(scores.shape)


def check(score_mod, folder, scores=None):
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    function, tensors = function_of(score_mod)
    where = places()
    if scores is None:
        scores = functions.randn(len(where), dtype=torch.float32, seed=9)
    given = function, tensors, scores, where
    mine, right = of_text(*given, folder), of_graph(*given)
    torch.testing.assert_close(
        mine.double(), right.double(), rtol=ERROR, atol=ERROR, equal_nan=True
    )
    return mine
