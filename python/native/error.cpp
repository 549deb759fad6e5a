// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <cstdarg>

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

}  // namespace

void raise(fa3_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(class_of(status), format, arguments);
  va_end(arguments);
}

bool check(fa3_status status) {
  if (status == FA3_OK) return true;
  PyErr_SetString(class_of(status), fa3_last_error());
  return false;
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
