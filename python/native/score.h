// SPDX-License-Identifier: Apache-2.0
//
// A score function as Python gives it: (Pieces, may_hide, path of libnvrtc or None, captured
// tensors); in a backward pass also GradientTexts (python/fa3/flex/function/pieces.py), and for
// each captured tensor None, or (its gradient, whether that is stored); then whether the call only
// compiles. Next: passes.h.
#pragma once

#include "reader.h"

#include <array>

namespace fa3::python {

class ScoreFunction {
 public:
  explicit ScoreFunction(Borrowed* borrowed) : borrowed_(borrowed) {}

  // Null, with a Python exception set, where the tuple is none of these. What it points to lives as
  // long as the tuple does.
  const fa3_score_function* read(PyObject* given) {
    PyObject *text = nullptr, *element = nullptr, *compiler = nullptr, *tensors = nullptr;
    PyObject *slope = Py_None, *gradients = Py_None, *totals = nullptr;
    if (!PyArg_ParseTuple(given, "(iUOp)pOO!|(OOp)O!p", &score_.kind, &text, &element,
                          &score_.repeats_tangents, &score_.may_hide, &compiler, &PyTuple_Type,
                          &tensors, &slope, &gradients, &score_.gradients_use_score, &PyTuple_Type,
                          &totals, &score_.only_compiles)) {
      return nullptr;
    }
    if (!read_element(element)) return nullptr;
    const Py_ssize_t count = PyTuple_Size(tensors);
    if (count > FA3_MAX_CAPTURED_TENSORS) {
      raise(FA3_UNSUPPORTED, "score_mod: expected %d captured tensors at most, got %zd",
            FA3_MAX_CAPTURED_TENSORS, count);
      return nullptr;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      fa3_captured_tensor* const tensor = &tensors_[size_t(i)];
      if (!read_tensor(PyTuple_GetItem(tensors, i), tensor)) return nullptr;
      PyObject* const total = totals != nullptr ? PyTuple_GetItem(totals, i) : Py_None;
      int stores = 0;
      if (total == nullptr || !read_gradient(total, tensor, &stores)) return nullptr;
      if (i == score_.element.tensor) score_.element.stores_gradient = stores;
    }
    score_.tensors = tensors_.data();
    score_.num_tensors = static_cast<int32_t>(count);
    const bool ok = read_text(text, &score_.text) && read_text(compiler, &score_.compiler) &&
                    read_text(slope, &score_.slope) && read_text(gradients, &score_.gradients);
    return ok ? &score_ : nullptr;
  }

 private:
  // None is null.
  static bool read_text(PyObject* from, const char** to) {
    if (from == Py_None) return true;
    *to = PyUnicode_AsUTF8AndSize(from, nullptr);
    return *to != nullptr;
  }

  bool read_element(PyObject* from) {
    if (from == Py_None) return true;
    fa3_score_element* const to = &score_.element;
    PyObject *type = nullptr, *indices = nullptr;
    return PyArg_ParseTuple(from, "iiiiUU", &to->kind, &to->tensor, &to->step, &to->head_index,
                            &type, &indices) &&
           read_text(type, &to->type) && read_text(indices, &to->indices);
  }

  bool read_tensor(PyObject* from, fa3_captured_tensor* to) {
    dlpack::Tensor tensor{};
    if (!borrowed_->look_at(from, "score_mod", Access::read, &tensor)) return false;
    if (tensor.rank > FA3_MAX_CAPTURED_RANK) {
      raise(FA3_UNSUPPORTED,
            "score_mod: expected %d dimensions at most of a captured tensor, got %d",
            FA3_MAX_CAPTURED_RANK, static_cast<int>(tensor.rank));
      return false;
    }
    if (tensor.data == nullptr) {
      raise(FA3_INVALID_ARGUMENT, "score_mod: expected data, got a captured tensor without memory");
      return false;
    }
    to->data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
    to->rank = tensor.rank;
    int64_t row_major = 1;
    for (int dim = tensor.rank - 1; dim >= 0; --dim) {
      const int64_t extent = to->shape[dim] = tensor.shape[dim];
      const int64_t stride = tensor.strides != nullptr ? tensor.strides[dim] : row_major;
      // The stride of an extent of 1 is never used, and may be larger than the library takes.
      to->stride[dim] = extent > 1 ? stride : 0;
      row_major *= extent;
    }
    return true;
  }

  bool read_gradient(PyObject* from, fa3_captured_tensor* to, int* stores) {
    if (from == Py_None) return true;
    PyObject* total = nullptr;
    dlpack::Tensor tensor{};
    if (!PyArg_ParseTuple(from, "Op", &total, stores)) return false;
    if (!borrowed_->look_at(total, "score_mod", Access::write, &tensor)) return false;
    to->gradient = reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
    return true;
  }

  Borrowed* borrowed_;
  fa3_score_function score_{};
  std::array<fa3_captured_tensor, FA3_MAX_CAPTURED_TENSORS> tensors_{};
};

}  // namespace fa3::python
