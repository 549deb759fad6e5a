// SPDX-License-Identifier: Apache-2.0
//
// What tells a call from others, as bytes: fa3.flex looks up by them what it has decided for calls
// that are alike (python/fa3/flex/kept.py).
#pragma once

#include "tensor.h"

namespace fa3::python {

// signature(names_of, (Tensor, Parameter), seen, (captured, ...), ...) -> bytes, or None: something
// cannot be told from others.
//
// Two signatures are equal only where the values are of the same types and
//   numbers, strings, None    the same
//   tuples, dicts             of the same values; dicts in the same order
//   tensors                   alike: shape, type, device, requires_grad; which strides are 0,
//                             and whether the last is 1
//                             a lazily negated view cannot be told from others
//   captured tensors          alike, and one object: by address, so whoever keeps a signature
//                             watches them
//   Python functions          of the same code, whose defaults, attributes, cells and globals, as
//                             far as the code names them, are the same, and tensors there captured
//   built-ins                 one object, of a library or bound to a class or nothing; also
//                             exceptions
//   modules                   one object, of which the code takes attributes alone, and these are
//                             the same
//   torch, NumPy, math, ...   one object; of the attributes that the code takes, numbers and
//                             tensors are the same, functions one object, others count as unchanged
// All of that is read in each call.
//
// names_of(code): what a code reads by name (python/fa3/flex/kept.py); asked once for each code.
//   ((global, uses, whether it may be missing), ...), (uses of a cell, ...)
//   uses: ((attribute, attribute of that, ...), ...), where () is the value itself
//   None: the code may read anything.
// Tensor, Parameter: the classes of tensors; those of other subclasses are told apart where a
// function captures them, and may do anything where they are arguments.
// seen: a list, to which captured tensors are appended, or None.
PyObject* signature(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// signature() for what follows from the elements of captured tensors: has their addresses and
// version_of(), and not what they are like.
PyObject* signature_with_writes(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// version_of(tensor) -> how many writes to its elements torch has counted, or None: it does not
// count them all, for the tensor is one of inference mode, or NumPy has its memory.
PyObject* version_of(PyObject*, PyObject* tensor);

// Interns the attribute names; false with a Python exception set.
bool init_signatures();

}  // namespace fa3::python
