// SPDX-License-Identifier: Apache-2.0
//
// Rows of ranks, rectangles and calls of context parallelism, as tuples of numbers:
// fa3_ring_pieces() for python/fa3/distributed/layout.py, fa3_ring_rectangles() and
// fa3_ring_calls() for cover.py.
#pragma once

#include "error.h"

namespace fa3::python {

// ring_pieces(layout, lengths of the documents, world, rank) -> [(document, begin, end), ...]
PyObject* ring_pieces(PyObject*, PyObject* arguments);

// ring_rectangles([(document, begin, end), ...], [...], left, right, step) ->
// [((row, end), (key, end), (low, high), (document, query, key)), ...]
PyObject* ring_rectangles(PyObject*, PyObject* arguments);

// ring_calls(rectangles, join) -> [((row, end), (key, end), (left, right), shift,
// (document, query, key), (lengths of rows), (lengths of keys)), ...]
PyObject* ring_calls(PyObject*, PyObject* arguments);

}  // namespace fa3::python
