// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <cctype>
#include <cstdarg>
#include <string>
#include <string_view>
#include <utility>

namespace fa3::python {
namespace {

struct ErrorClass {
  fa3_status status;
  const char* name;
  PyObject* exception;
};

ErrorClass g_classes[] = {
    {FA3_INVALID_ARGUMENT, "InvalidArgument", nullptr},
    {FA3_UNSUPPORTED, "Unsupported", nullptr},
    {FA3_WORKSPACE_TOO_SMALL, "WorkspaceTooSmall", nullptr},
    {FA3_OUT_OF_MEMORY, "OutOfMemory", nullptr},
    {FA3_DEVICE_ERROR, "DeviceError", nullptr},
    {FA3_INTERNAL_ERROR, "InternalError", nullptr},
};

PyObject* class_of(fa3_status status) {
  for (const ErrorClass& entry : g_classes) {
    if (entry.status == status) return entry.exception;
  }
  return PyExc_RuntimeError;
}

// Names of the C ABI, and what Python calls the same argument.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"o", "out"},
    {"d_o", "do"},
    {"d_lse", "dlse"},
    {"window_left", "window[0]"},
    {"window_right", "window[1]"},
    {"FA3_SCALE_AUTO", "None"},
};

}  // namespace

std::string in_words_of_python(std::string_view sentence) {
  const auto in_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  std::string text;
  for (size_t begin = 0, end = 0; begin < sentence.size(); begin = end) {
    end = begin + 1;
    if (in_word(static_cast<unsigned char>(sentence[begin]))) {
      while (end < sentence.size() && in_word(static_cast<unsigned char>(sentence[end]))) ++end;
    }
    std::string_view word = sentence.substr(begin, end - begin);
    for (const auto& [ours, pythons] : kWords) {
      if (word == ours) {
        word = pythons;
        break;
      }
    }
    text += word;
  }
  return text;
}

void raise(fa3_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(class_of(status), format, arguments);
  va_end(arguments);
}

bool check(fa3_status status) {
  if (status == FA3_OK) return true;
  PyErr_SetString(class_of(status), in_words_of_python(fa3_last_error()).c_str());
  return false;
}

bool forget_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

bool init_errors() {
  PyObject* module = PyImport_ImportModule("fa3.errors");
  if (module == nullptr) return false;
  bool found = true;
  for (ErrorClass& entry : g_classes) {
    entry.exception = PyObject_GetAttrString(module, entry.name);
    found = found && entry.exception != nullptr;
  }
  Py_DECREF(module);
  return found;
}

}  // namespace fa3::python
