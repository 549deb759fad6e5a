// SPDX-License-Identifier: Apache-2.0
#include "ring.h"

#include <fa3/ring.h>

#include <algorithm>
#include <vector>

namespace fa3::python {
namespace {

// Reads each item of a list by `format` into a struct's fields, in their order. False with a Python
// exception set.
template <class Struct, class... Fields>
bool read_list(PyObject* list, const char* format, std::vector<Struct>* items, Fields... fields) {
  const Py_ssize_t count = PyList_Size(list);
  if (count < 0) return false;
  items->resize(size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    Struct* const item = &(*items)[size_t(i)];
    if (PyArg_ParseTuple(PyList_GetItem(list, i), format, fields(item)...) == 0) return false;
  }
  return true;
}

bool read_pieces(PyObject* list, std::vector<fa3_ring_piece>* pieces) {
  using Piece = fa3_ring_piece;
  return read_list(
      list, "LLL", pieces, [](Piece* p) { return &p->document; },
      [](Piece* p) { return &p->begin; }, [](Piece* p) { return &p->end; });
}

// Takes the item's reference, which may be null with a Python exception set.
bool append(PyObject* list, PyObject* item) {
  const bool ok = item != nullptr && PyList_Append(list, item) == 0;
  Py_XDECREF(item);
  return ok;
}

PyObject* lengths_of(const int32_t* numbers, int64_t count) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
    PyTuple_SetItem(tuple, i, PyLong_FromLong(numbers[i]));
  }
  return tuple;
}

PyObject* done(PyObject* list, bool ok) {
  if (ok) return list;
  Py_XDECREF(list);
  return nullptr;
}

}  // namespace

PyObject* ring_pieces(PyObject*, PyObject* arguments) {
  PyObject* lengths = nullptr;
  int layout = 0, world = 0, rank = 0;
  if (PyArg_ParseTuple(arguments, "iO!ii", &layout, &PyList_Type, &lengths, &world, &rank) == 0) {
    return nullptr;
  }
  const Py_ssize_t documents = PyList_Size(lengths);
  std::vector<int32_t> starts = {0};
  fa3_ring ring;
  fa3_ring_init(&ring);
  for (Py_ssize_t i = 0; i < documents; ++i) {
    ring.seqlen += PyLong_AsLongLong(PyList_GetItem(lengths, i));
    if (PyErr_Occurred() != nullptr) return nullptr;
    starts.push_back(static_cast<int32_t>(ring.seqlen));  // the library refuses more than 2^30
  }
  ring.layout = layout;
  ring.cu_seqlens = starts.data();
  ring.num_documents = static_cast<int32_t>(documents);
  std::vector<fa3_ring_piece> found(size_t(2 * std::max<Py_ssize_t>(documents, 1)));
  auto count = static_cast<int64_t>(found.size());
  if (!check(fa3_ring_pieces(&ring, world, rank, found.data(), &count))) return nullptr;
  PyObject* const list = PyList_New(0);
  bool ok = list != nullptr;
  for (int64_t i = 0; ok && i < count; ++i) {
    const fa3_ring_piece& of = found[size_t(i)];
    ok = append(list, Py_BuildValue("LLL", of.document, of.begin, of.end));
  }
  return done(list, ok);
}

PyObject* ring_rectangles(PyObject*, PyObject* arguments) {
  PyObject *rows = nullptr, *keys = nullptr;
  int64_t window[2] = {}, step = 0, count = 0;
  if (PyArg_ParseTuple(arguments, "O!O!LLL", &PyList_Type, &rows, &PyList_Type, &keys, &window[0],
                       &window[1], &step) == 0) {
    return nullptr;
  }
  std::vector<fa3_ring_piece> of_rows, of_keys;
  if (!read_pieces(rows, &of_rows) || !read_pieces(keys, &of_keys)) return nullptr;
  std::vector<fa3_ring_rectangle> found(of_rows.size() + of_keys.size());
  const auto ask = [&] {
    count = static_cast<int64_t>(found.size());
    return check(fa3_ring_rectangles(of_rows.data(), static_cast<int64_t>(of_rows.size()),
                                     of_keys.data(), static_cast<int64_t>(of_keys.size()), window,
                                     step, found.data(), &count));
  };
  if (!ask()) return nullptr;
  const bool has_room = count <= static_cast<int64_t>(found.size());
  found.resize(static_cast<size_t>(count));
  if (!has_room && !ask()) return nullptr;
  PyObject* const list = PyList_New(0);
  bool ok = list != nullptr;
  for (size_t i = 0; ok && i < found.size(); ++i) {
    const fa3_ring_rectangle& of = found[i];
    ok = append(list, Py_BuildValue("(LL)(LL)(LL)(LLL)", of.rows[0], of.rows[1], of.keys[0],
                                    of.keys[1], of.low, of.high, of.document, of.query, of.key));
  }
  return done(list, ok);
}

PyObject* ring_calls(PyObject*, PyObject* arguments) {
  PyObject* rectangles = nullptr;
  int join = 0;
  if (PyArg_ParseTuple(arguments, "O!i", &PyList_Type, &rectangles, &join) == 0) return nullptr;
  using Rectangle = fa3_ring_rectangle;
  std::vector<Rectangle> of;
  if (!read_list(
          rectangles, "(LL)(LL)(LL)(LLL)", &of, [](Rectangle* r) { return &r->rows[0]; },
          [](Rectangle* r) { return &r->rows[1]; }, [](Rectangle* r) { return &r->keys[0]; },
          [](Rectangle* r) { return &r->keys[1]; }, [](Rectangle* r) { return &r->low; },
          [](Rectangle* r) { return &r->high; }, [](Rectangle* r) { return &r->document; },
          [](Rectangle* r) { return &r->query; }, [](Rectangle* r) { return &r->key; })) {
    return nullptr;
  }
  std::vector<fa3_ring_call> calls(of.size());
  std::vector<int32_t> lengths(8 * of.size());
  int64_t count = 0;
  if (!check(fa3_ring_calls(of.data(), static_cast<int64_t>(of.size()), join, calls.data(), &count,
                            lengths.data()))) {
    return nullptr;
  }
  PyObject* const list = PyList_New(0);
  bool ok = list != nullptr;
  const int32_t* next = lengths.data();
  for (size_t i = 0; ok && i < static_cast<size_t>(count); ++i) {
    const fa3_ring_call& call = calls[i];
    const int64_t n = call.num_lengths;
    ok = append(list, Py_BuildValue("(LL)(LL)(LL)L(LLL)NN", call.rows[0], call.rows[1],
                                    call.keys[0], call.keys[1], call.window_left, call.window_right,
                                    call.window_shift, call.document, call.query, call.key,
                                    lengths_of(next, n), lengths_of(next + n, n)));
    next += 2 * n;
  }
  return done(list, ok);
}

}  // namespace fa3::python
