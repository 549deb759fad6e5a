// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <dlfcn.h>

namespace fa3::python {
namespace {

// Whether the array's type is CuPy's own.
bool is_of_cupy(PyObject* array) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array));
  PyObject* module = PyObject_GetAttrString(type, "__module__");
  PyObject* root = module != nullptr ? PyObject_CallMethod(module, "partition", "s", ".") : nullptr;
  const char* wanted = "cupy";
  PyObject* name = root != nullptr && PyTuple_Check(root) ? PyTuple_GetItem(root, 0) : nullptr;
  const bool is = name != nullptr && PyUnicode_Check(name) &&
                  PyUnicode_CompareWithASCIIString(name, wanted) == 0;
  Py_XDECREF(root);
  Py_XDECREF(module);
  PyErr_Clear();
  return is;
}

// The driver's functions, from the library that whoever made the arrays has loaded.
template <class Function>
Function driver(const char* name) {
  static void* const s_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return s_library != nullptr ? reinterpret_cast<Function>(dlsym(s_library, name)) : nullptr;
}

}  // namespace

bool find_stream(PyObject* array, Stream* stream) {
  *stream = {};
  if (!is_of_cupy(array)) return true;
  PyObject* cuda = PyImport_ImportModule("cupy.cuda");
  PyObject* current =
      cuda != nullptr ? PyObject_CallMethod(cuda, "get_current_stream", nullptr) : nullptr;
  PyObject* address = current != nullptr ? PyObject_GetAttrString(current, "ptr") : nullptr;
  if (address != nullptr) *stream = {PyLong_AsVoidPtr(address), true};
  Py_XDECREF(address);
  Py_XDECREF(current);
  Py_XDECREF(cuda);
  return PyErr_Occurred() == nullptr;
}

void wait_for_default_stream(int device_index) {
  using Context = void*;
  auto* retain = driver<int (*)(Context*, int)>("cuDevicePrimaryCtxRetain");
  auto* release = driver<int (*)(int)>("cuDevicePrimaryCtxRelease_v2");
  auto* push = driver<int (*)(Context)>("cuCtxPushCurrent_v2");
  auto* pop = driver<int (*)(Context*)>("cuCtxPopCurrent_v2");
  auto* wait = driver<int (*)(void*)>("cuStreamSynchronize");
  Context context = nullptr;
  if (retain == nullptr || release == nullptr || push == nullptr || pop == nullptr ||
      wait == nullptr || retain(&context, device_index) != 0) {
    return;  // then no call can have queued anything
  }
  if (push(context) == 0) {
    wait(nullptr);
    pop(&context);
  }
  release(device_index);
}

}  // namespace fa3::python
