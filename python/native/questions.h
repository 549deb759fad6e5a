// SPDX-License-Identifier: Apache-2.0
//
// What is asked about a call without running it, of tensors that may have no memory.
#pragma once

#include "error.h"

namespace fa3::python {

// backward_supported(q, k, v, ...): None, or the reason why the call has no gradient.
PyObject* backward_supported(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// forward_query(score, q, k, v, ...), backward_query(...): (whether the call is supported, the id
// of its engine, whether no better engine refused it, its kernel, why it is not supported). score:
// as of forward_with_score(), or None. Tensors may have no memory; options are those of both
// passes.
PyObject* forward_query(PyObject*, PyObject* const* arguments, Py_ssize_t count);
PyObject* backward_query(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// forward_plan(...): the plan as text, or the reason why there is none. The arguments are
// those of forward(), out and lse None. mla_plan(...): as mla_forward() without `allocate`.
PyObject* forward_plan(PyObject*, PyObject* const* arguments, Py_ssize_t count);
PyObject* mla_plan(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// forward_advise(...): as forward_plan(). (whether FP8 pays, seconds, seconds in FP8, errors and
// bytes likewise, the reason.)
PyObject* forward_advise(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// forward_validate(...): as forward_plan(); None, or the reason why the call would follow a number
// out of its tensors.
PyObject* forward_validate(PyObject*, PyObject* const* arguments, Py_ssize_t count);

}  // namespace fa3::python
