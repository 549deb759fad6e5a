// SPDX-License-Identifier: Apache-2.0
//
// fa3 for compiled JAX programs: handlers of XLA's FFI. They are C functions over the C ABI, so
// they run without Python, its lock or JAX. Next: fa3/jax/primitives.py, which makes their calls.
#pragma once

#include "tensor.h"

namespace fa3::python {

// [(name of the call, platform as XLA spells it, capsule with the handler), ...]
PyObject* ffi_handlers(PyObject*, PyObject*);

}  // namespace fa3::python
