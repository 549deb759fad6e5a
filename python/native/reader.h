// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a Python call as numbers and tensor views. Next: tensor.h.
#pragma once

#include "error.h"
#include "tensor.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace fa3::python {

// Takes the arguments of a call one after the other. After the first failure (a Python exception is
// set) every further read does nothing.
class Reader {
 public:
  Reader(PyObject* const* arguments, Py_ssize_t count, Borrowed* borrowed)
      : next_(arguments), end_(arguments + count), borrowed_(borrowed) {}

  PyObject* object() {
    if (ok_ && next_ == end_) {
      if (!rest_is_optional_) refuse("fa3._native: too few arguments");
      return nullptr;
    }
    return ok_ ? *next_++ : nullptr;
  }

  // Arguments from here on keep their defaults where there are no more.
  void rest_is_optional() { rest_is_optional_ = true; }

  // Whether there is nothing to read, for a list or for a failure before.
  bool is_at_end() const { return !ok_ || next_ == end_; }

  // After the last reader. Refuses a list that is longer than its readers.
  bool done() {
    if (ok_ && next_ != end_) refuse("fa3._native: too many arguments");
    return ok_;
  }

  void tensor(const char* name, Access access, fa3_tensor* view) {
    PyObject* value = object();
    if (value == nullptr) return;
    if (view == remembered_) first_ = value;
    if (view == remembered_ + 1) second_ = value;
    ok_ = borrowed_->view(value, name, access, view);
  }

  // Two views, one behind the other, whose objects are asked for later: first() and second(), null
  // where they are not read.
  void remember(const fa3_tensor* pair) { remembered_ = pair; }
  PyObject* first() const { return first_; }
  PyObject* second() const { return second_; }

  void integer(const char* name, int64_t* value) {
    PyObject* number = object();
    if (number == nullptr) return;
    *value = PyLong_AsLongLong(number);
    if (*value != -1 || PyErr_Occurred() == nullptr) return;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
      raise(FA3_INVALID_ARGUMENT, "%s: expected an integer of 64 bits, got %R",
            in_words_of_python(name).c_str(), number);
      ok_ = false;
    } else {
      fail(name, "an integer", number);
    }
  }

  // Values outside of int32 become its ends, which the library refuses by name.
  void integer(const char* name, int32_t* value) {
    int64_t wide = 0;
    integer(name, &wide);
    *value = static_cast<int32_t>(std::clamp<int64_t>(wide, std::numeric_limits<int32_t>::min(),
                                                      std::numeric_limits<int32_t>::max()));
  }

  void real(const char* name, float* value) {
    PyObject* number = object();
    if (number == nullptr) return;
    const double wide = PyFloat_AsDouble(number);
    if (wide == -1.0 && PyErr_Occurred() != nullptr) fail(name, "a number", number);
    *value = static_cast<float>(wide);
  }

  // None leaves the default.
  void optional_real(const char* name, float* value) {
    if (ok_ && next_ != end_ && *next_ == Py_None) {
      ++next_;
    } else {
      real(name, value);
    }
  }

  void flag(const char* name, int32_t* value) {
    PyObject* truth = object();
    if (truth == nullptr) return;
    *value = PyUnicode_Check(truth) ? -1 : PyObject_IsTrue(truth);
    if (*value < 0) fail(name, "True or False", truth);
  }

  // A call that cannot be read.
  void refuse(const char* sentence) {
    PyErr_SetString(PyExc_TypeError, sentence);
    ok_ = false;
  }

 private:
  void fail(const char* name, const char* expected, PyObject* got) {
    PyErr_Format(PyExc_TypeError, "%s: expected %s, got %R", in_words_of_python(name).c_str(),
                 expected, got);
    ok_ = false;
  }

  PyObject* const* next_;
  PyObject* const* end_;
  Borrowed* borrowed_;
  const fa3_tensor* remembered_ = nullptr;
  PyObject *first_ = nullptr, *second_ = nullptr;
  bool rest_is_optional_ = false;
  bool ok_ = true;
};

}  // namespace fa3::python
