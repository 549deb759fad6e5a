// SPDX-License-Identifier: Apache-2.0
//
// CUDA streams of frameworks without an exchange table: CuPy says which one is current, others
// (JAX) have streams that nobody may use, so that a call waits for its results.
#pragma once

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

namespace fa3::python {

struct Stream {
  void* address = nullptr;  // null: the legacy default stream
  bool is_current = false;  // of the framework; else it knows nothing of what is queued there
};

// False with a Python exception.
bool find_stream(PyObject* array, Stream* stream);

// Returns when the device has done what is queued on the legacy default stream. Without the GIL.
void wait_for_default_stream(int device_index);

}  // namespace fa3::python
