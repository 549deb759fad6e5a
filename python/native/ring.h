// SPDX-License-Identifier: Apache-2.0
//
// Rectangles and calls of context parallelism, as tuples of numbers: fa3_ring_rectangles() and
// fa3_ring_calls() for python/fa3/distributed/cover.py.
#pragma once

#include "error.h"

namespace fa3::python {

// ring_rectangles([(document, begin, end), ...], [...], left, right, step) ->
// [((row, end), (key, end), (low, high), (document, query, key)), ...]
PyObject* ring_rectangles(PyObject*, PyObject* arguments);

// ring_calls(rectangles, join) -> [((row, end), (key, end), (left, right), shift,
// (document, query, key), (lengths of rows), (lengths of keys)), ...]
PyObject* ring_calls(PyObject*, PyObject* arguments);

}  // namespace fa3::python
