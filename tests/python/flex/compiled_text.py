# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of a score function, compiled as plain C++, and the graph it was written of."""

import ctypes
import shutil
import subprocess

import flex_functions as functions  # skips without torch
import pytest
import torch
from builds import ROOT

from fa3.flex.function.interpret import evaluate
from fa3.flex.function.text import text_of
from fa3.flex.known_functions import function_of

COMPILER = shutil.which("g++")
HEADS, ROWS, ERROR = 3, 20, 3e-6

PROGRAM = """
#include <cmath>
#include <cstdint>
using namespace std;
#include "engine/cuda/softmax/score_gradient.cuh"
namespace fa3::cuda {
inline float ScoreFunction::of(float score, int b, int h, int q_idx, int kv_idx) const {
%s}
inline float ScoreFunction::slope(float score, int b, int h, int q_idx, int kv_idx) const {
%s}
inline void ScoreGradient::of(float gradient, float score, int b, int h, int q_idx, int kv_idx) {
%s}
}
extern "C" void compute(const fa3::cuda::ScoreCaptures* captures, const float* scores,
                        const int* places, float* results, int count) {
  const fa3::cuda::ScoreFunction function{*captures};
  for (int i = 0; i < count; ++i, places += 4) {
    results[i] = function.of(scores[i], places[0], places[1], places[2], places[3]);
  }
}
// By the words of two neighbours each, where a tensor has them.
extern "C" void compute_by_pairs(const fa3::cuda::ScoreCaptures* captures, const float* scores,
                                 const int* places, float* results, int count) {
  const fa3::cuda::ScoreFunction function{*captures};
  for (int i = 0; i < count; ++i, places += 4) {
    fa3::cuda::ScoreFunction other = function;
    const int first = places[3] & ~1;
    const void* place = nullptr;
    uint32_t word = 0;
    results[i] = NAN;
    if (!function.has_pairs<0>(first, 2) || function.has_pairs<0>(first + 1, 1)) continue;
    other.pair.place = &place;
    other.of(scores[i], places[0], places[1], places[2], first);
    word = fa3::cuda::score::load_pair(place);
    other.pair = {&word, first != places[3]};
    results[i] = other.of(scores[i], places[0], places[1], places[2], places[3]);
  }
}
// By where load_run() finds the elements of a key and of some before it.
extern "C" void compute_by_runs(const fa3::cuda::ScoreCaptures* captures, const float* scores,
                                const int* places, float* results, int count) {
  for (int i = 0; i < count; ++i, places += 4) {
    fa3::cuda::ScoreFunction function{*captures};
    fa3::cuda::Run run{};
    const int first = places[3] < 5 ? 0 : places[3] - 5;
    function.run = &run;
    function.column = places[3] - first;
    function.of(scores[i], places[0], places[1], places[2], first);
    results[i] = NAN;
    if (!run.is_inside) continue;
    function.in_run = &run;
    results[i] = function.of(scores[i], places[0], places[1], places[2], places[3]);
  }
}
// By where load_clamped_run() finds the elements of a key and of one some keys before it.
extern "C" void compute_by_clamped_runs(const fa3::cuda::ScoreCaptures* captures,
                                        const float* scores, const int* places, float* results,
                                        int count) {
  for (int i = 0; i < count; ++i, places += 4) {
    fa3::cuda::ScoreFunction function{*captures};
    fa3::cuda::ClampedRun run{}, last{};
    const int first = places[3] < 5 ? 0 : places[3] - 5, keys = places[3] - first;
    function.clamped_run = &run;
    function.of(scores[i], places[0], places[1], places[2], first);
    function.clamped_run = &last;
    function.of(scores[i], places[0], places[1], places[2], places[3]);
    results[i] = NAN;
    if (!run.goes_on(last, keys) && !run.stays(last)) continue;
    const fa3::cuda::Run known{run.element, true};
    function.column = run.goes_on(last, keys) ? keys : 0;
    function.in_run = &known;
    results[i] = function.of(scores[i], places[0], places[1], places[2], places[3]);
  }
}
// The step of linear() or piecewise_linear().
extern "C" void find_steps(const fa3::cuda::ScoreCaptures* captures, const float* scores,
                           const int* places, float* results, int count) {
  for (int i = 0; i < count; ++i, places += 4) {
    fa3::cuda::ScoreFunction function{*captures};
    function.step = &results[i];
    results[i] = NAN;
    function.of(scores[i], places[0], places[1], places[2], places[3]);
  }
}
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


def compiled(function, folder, slope=None, gradients=None):
    texts = text_of(function), slope or "return 1.0f;\n", gradients or ""
    text = "".join(texts)
    source = folder / f"score{hash(text)}.cpp"  # a library of the same name would not be loaded
    library = source.with_suffix(".so")
    source.write_text(PROGRAM % texts)
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
