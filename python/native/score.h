// SPDX-License-Identifier: Apache-2.0
//
// A score function as Python gives it: (text, may_hide, path of libnvrtc or None, captured
// tensors), each of these (address, shape, strides, address of the gradient or 0, whether that is
// stored); in a backward pass also the texts of slope and gradients, or None. Next: passes.h.
#pragma once

#include "reader.h"

#include <array>
#include <string>

namespace fa3::python {

class ScoreFunction {
 public:
  // Null, with a Python exception set, where the tuple is none of these.
  const fa3_score_function* read(PyObject* given) {
    PyObject *text = nullptr, *compiler = nullptr, *tensors = nullptr;
    PyObject *slope = Py_None, *gradients = Py_None;
    if (!PyArg_ParseTuple(given, "UpOO!|OO", &text, &score_.may_hide, &compiler, &PyTuple_Type,
                          &tensors, &slope, &gradients)) {
      return nullptr;
    }
    const Py_ssize_t count = PyTuple_Size(tensors);
    if (count > FA3_MAX_CAPTURED_TENSORS) {
      raise(FA3_UNSUPPORTED, "score_mod: expected %d captured tensors at most, got %zd",
            FA3_MAX_CAPTURED_TENSORS, count);
      return nullptr;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!read_tensor(PyTuple_GetItem(tensors, i), &tensors_[size_t(i)])) return nullptr;
    }
    score_.tensors = tensors_.data();
    score_.num_tensors = static_cast<int32_t>(count);
    const bool ok =
        copy(text, &text_, &score_.text) && copy(compiler, &compiler_, &score_.compiler) &&
        copy(slope, &slope_, &score_.slope) && copy(gradients, &gradients_, &score_.gradients);
    return ok ? &score_ : nullptr;
  }

 private:
  // None is null.
  static bool copy(PyObject* from, std::string* text, const char** to) {
    if (from == Py_None) return true;
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(from, &size);
    if (bytes == nullptr) return false;
    text->assign(bytes, static_cast<size_t>(size));
    *to = text->c_str();
    return true;
  }
  static bool read_tensor(PyObject* from, fa3_captured_tensor* to) {
    unsigned long long address = 0, gradient = 0;
    int stores = 0;
    PyObject *shape = nullptr, *stride = nullptr;
    if (!PyArg_ParseTuple(from, "KO!O!K|p", &address, &PyTuple_Type, &shape, &PyTuple_Type, &stride,
                          &gradient, &stores)) {
      return false;
    }
    to->stores_gradient = stores;
    to->gradient = reinterpret_cast<float*>(static_cast<uintptr_t>(gradient));
    const Py_ssize_t rank = std::min<Py_ssize_t>(PyTuple_Size(shape), FA3_MAX_CAPTURED_RANK);
    to->data = reinterpret_cast<const void*>(static_cast<uintptr_t>(address));
    to->rank = static_cast<int32_t>(rank);
    for (Py_ssize_t dim = 0; dim < rank; ++dim) {
      to->shape[dim] = PyLong_AsLongLong(PyTuple_GetItem(shape, dim));
      to->stride[dim] = PyLong_AsLongLong(PyTuple_GetItem(stride, dim));
    }
    return PyErr_Occurred() == nullptr;
  }

  fa3_score_function score_{};
  std::array<fa3_captured_tensor, FA3_MAX_CAPTURED_TENSORS> tensors_{};
  std::string text_, compiler_, slope_, gradients_;
};

}  // namespace fa3::python
