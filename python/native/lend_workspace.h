// SPDX-License-Identifier: Apache-2.0
//
// Runs a pass of the C ABI without the GIL, in workspace that the host's thread keeps or that the
// framework of a device's tensors lends.
#pragma once

#include <fa3/attention.h>

#include "error.h"
#include "tensor.h"

namespace fa3::python {

// What one call needs besides its tensors: where it runs and what lends it device memory.
struct Call {
  const fa3_tensor& first;
  void* stream;
  PyObject* allocate;  // allocate(bytes, device_index) -> (array there, address), or None
};

// Host workspace stays with its thread, so that most calls allocate nothing. More than this is
// freed after the call.
inline constexpr size_t kKeptBytes = size_t{64} << 20;

template <class Pass>
bool run_on_host(const typename Pass::Params& params) {
  thread_local fa3::Workspace t_workspace;
  PyThreadState* released = PyEval_SaveThread();
  const fa3_status status = Pass::run(&params, fa3::Workspace::allocate, &t_workspace, nullptr);
  PyEval_RestoreThread(released);
  const bool ok = check(status);
  if (t_workspace.bytes() > kKeptBytes) t_workspace = {};
  return ok;
}

// Device workspace belongs to the framework's allocator: ordered by its stream, safe in graphs. The
// call runs without the GIL, which is taken back for as long as Python allocates: where the
// framework has no function in C for it, or no memory, of which its Python tells more.
struct DeviceWorkspace {
  PyObject* lend;  // Call::allocate
  int device_index;
  Borrowed* borrowed;
  PyObject* lent = nullptr;
  PyThreadState* released = nullptr;

  static void* allocate(void* context, size_t bytes) {
    auto* self = static_cast<DeviceWorkspace*>(context);
    if (void* address = self->borrowed->lend(bytes)) return address;
    PyEval_RestoreThread(self->released);
    void* address = self->address_of_new(bytes);  // null with a Python exception
    self->released = PyEval_SaveThread();
    return address;
  }

  void* address_of_new(size_t bytes) {
    if (lend == Py_None) {
      raise(
          FA3_UNSUPPORTED,
          "workspace: this call needs %zu bytes on the tensors' device, which arrays of this kind "
          "cannot lend",
          bytes);
      return nullptr;
    }
    lent = PyObject_CallFunction(lend, "ni", static_cast<Py_ssize_t>(bytes), device_index);
    PyObject* number = lent != nullptr ? PyTuple_GetItem(lent, 1) : nullptr;
    return number != nullptr ? PyLong_AsVoidPtr(number) : nullptr;
  }
};

template <class Pass>
bool run_on_device(const typename Pass::Params& params, const Call& call, Borrowed* borrowed) {
  DeviceWorkspace workspace{call.allocate, call.first.device_index, borrowed};
  workspace.released = PyEval_SaveThread();
  const fa3_status status = Pass::run(&params, DeviceWorkspace::allocate, &workspace, call.stream);
  PyEval_RestoreThread(workspace.released);
  const bool ok = PyErr_Occurred() == nullptr && check(status);
  if (workspace.lent != nullptr) borrowed->keep(workspace.lent);
  return ok;
}

}  // namespace fa3::python
