// SPDX-License-Identifier: Apache-2.0
#include "questions.h"

#include "mla.h"
#include "passes.h"
#include "reader.h"
#include "score.h"

#include <fa3/fp8.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace fa3::python {
namespace {

// A row-major tensor of the shape, type and device of `tensor`, without memory.
fa3_tensor unallocated_like(const fa3_tensor& tensor) {
  fa3_tensor result = tensor;
  result.data = nullptr;
  int64_t stride = 1;
  for (int dim = result.rank - 1; dim >= 0; --dim) {
    result.stride[dim] = stride;
    stride *= std::max<int64_t>(result.shape[dim], 1);
  }
  return result;
}

// Like unallocated_like(), with another shape.
fa3_tensor unallocated(fa3_tensor tensor, std::initializer_list<int64_t> shape) {
  tensor.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  return unallocated_like(tensor);
}

// The output that attention() would allocate. A q of wrong rank is refused before anybody reads it.
void describe_output(fa3_forward_params* params) {
  const fa3_tensor& q = params->q;
  const int64_t dv = params->v.rank > 0 ? params->v.shape[params->v.rank - 1] : 0;
  if (q.rank == 4) params->o = unallocated(q, {q.shape[0], q.shape[1], q.shape[2], dv});
  if (q.rank == 3) params->o = unallocated(q, {q.shape[0], q.shape[1], dv});
  if (q.dtype == FA3_FLOAT8_E4M3) params->o.dtype = FA3_BFLOAT16;
}

// What the gradient of attention() passes and receives besides q, k, v and the options.
void describe_gradients(fa3_backward_params* params) {
  const fa3_tensor& q = params->q;
  const int64_t dv = params->v.rank > 0 ? params->v.shape[params->v.rank - 1] : 0;
  if (q.rank == 4) {
    params->o = unallocated(q, {q.shape[0], q.shape[1], q.shape[2], dv});
    params->lse = unallocated(q, {q.shape[0], q.shape[2], q.shape[1]});
  }
  if (q.rank == 3) {
    params->o = unallocated(q, {q.shape[0], q.shape[1], dv});
    params->lse = unallocated(q, {q.shape[1], q.shape[0]});
  }
  params->lse.dtype = FA3_FLOAT32;
  params->d_o = params->o;
  params->dq = unallocated_like(q);
  params->dk = unallocated_like(params->k);
  params->dv = unallocated_like(params->v);
  if (params->sink.rank > 0) params->dsink = unallocated_like(params->sink);
  if (params->gate.rank > 0) params->d_gate = unallocated_like(params->gate);
}

void describe_results(fa3_forward_params* params) {
  describe_output(params);
}
void describe_results(fa3_backward_params* params) {
  describe_gradients(params);
}

// q, k, v and the options of both passes.
template <class Params>
bool read_inputs(Reader* read, Params* params) {
  read->tensor("q", Access::read, &params->q);
  read->tensor("k", Access::read, &params->k);
  read->tensor("v", Access::read, &params->v);
  read_options(read, params);
  return read->done();
}

template <class Params>
PyObject* query(PyObject* const* arguments, Py_ssize_t count, void (*init)(Params*),
                fa3_status (*ask)(const Params*, fa3_answer*)) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  PyObject* given = read.object();
  Params params;
  init(&params);
  if (!read_inputs(&read, &params)) return nullptr;
  ScoreFunction score(&borrowed);
  if (given != Py_None) {
    params.options.score = score.read(given);
    if (params.options.score == nullptr) return nullptr;
  }
  describe_results(&params);
  fa3_answer answer;
  if (!check(ask(&params, &answer))) return nullptr;
  return Py_BuildValue("(NiNss)", PyBool_FromLong(answer.supported), answer.engine,
                       PyBool_FromLong(answer.first_engine), answer.kernel, answer.reason);
}

// A forward's arguments without tensors to write, whose out and lse are None.
bool read_question(PyObject* const* arguments, Py_ssize_t count, Borrowed* borrowed,
                   fa3_forward_params* params) {
  Reader read(arguments, count, borrowed);
  fa3_forward_params_init(params);
  Forward::read(&read, params);
  if (!read.done()) return false;
  describe_output(params);
  return true;
}

// The words of *_plan_text().
template <class Params>
PyObject* words_of(fa3_status (*write)(const Params*, char*, size_t, size_t*),
                   const Params& params) {
  size_t needed = 0;
  if (!check(write(&params, nullptr, 0, &needed))) return nullptr;
  std::string text(needed, '\0');
  if (!check(write(&params, text.data(), text.size(), nullptr))) return nullptr;
  return PyUnicode_FromString(text.c_str());
}

}  // namespace

PyObject* backward_supported(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  fa3_backward_params params;
  fa3_backward_params_init(&params);
  if (!read_inputs(&read, &params)) return nullptr;
  describe_gradients(&params);
  return check(fa3_backward_supported(&params)) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* forward_query(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return query(arguments, count, fa3_forward_params_init, fa3_forward_query);
}
PyObject* backward_query(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return query(arguments, count, fa3_backward_params_init, fa3_backward_query);
}

PyObject* forward_plan(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  fa3_forward_params params;
  if (!read_question(arguments, count, &borrowed, &params)) return nullptr;
  return words_of(fa3_forward_plan_text, params);
}

PyObject* mla_plan(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  fa3_mla_forward_params params;
  fa3_mla_forward_params_init(&params);
  MlaForward::read(&read, &params);
  return read.done() ? words_of(fa3_mla_forward_plan_text, params) : nullptr;
}

PyObject* forward_advise(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  fa3_forward_params params;
  if (!read_question(arguments, count, &borrowed, &params)) return nullptr;
  fa3_advice found;
  if (!check(fa3_forward_advise(&params, &found))) return nullptr;
  return Py_BuildValue("(NddddLLs)", PyBool_FromLong(found.precision == FA3_FLOAT8_E4M3),
                       found.seconds, found.seconds_fp8, found.error, found.error_fp8,
                       static_cast<long long>(found.bytes), static_cast<long long>(found.bytes_fp8),
                       found.reason);
}

PyObject* forward_validate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  fa3_forward_params params;
  if (!read_question(arguments, count, &borrowed, &params)) return nullptr;
  fa3_status status = FA3_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = fa3_forward_validate(&params, borrowed.stream());
  Py_END_ALLOW_THREADS;
  return check(status) ? Py_NewRef(Py_None) : nullptr;
}

}  // namespace fa3::python
