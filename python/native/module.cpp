// SPDX-License-Identifier: Apache-2.0
//
// fa3._native: the C ABI for Python, one function per C function. Positional arguments only, in the
// order of the readers below and of passes.h. The module views arrays (tensor.h), lends workspace,
// releases the GIL and raises the library's sentences. It never looks at values, never converts,
// never copies. Next: reader.h, lend_workspace.h.
#include "error.h"
#include "ffi.h"
#include "kept_lists.h"
#include "lend_workspace.h"
#include "mla.h"
#include "passes.h"
#include "questions.h"
#include "reader.h"
#include "ring.h"
#include "score.h"
#include "signature.h"
#include "tensor.h"

#include "core/threads.h"

#include <fa3/fp8.h>

#include <cstddef>
#include <iterator>

namespace fa3::python {
namespace {

struct Quantize {
  using Params = fa3_quantize_params;
  static constexpr auto init = fa3_quantize_params_init;
  static constexpr auto run = fa3_quantize_with_allocator;

  // of_x, of_y: of the numbers to quantize, and of what they become.
  static void read(Reader* read, Params* params, const char* x = "x", Access of_x = Access::read,
                   Access of_y = Access::write) {
    read->tensor(x, of_x, &params->x);
    read->tensor("y", of_y, &params->y);
    read->tensor("descale", of_y, &params->descale);
    read->tensor("mean", of_y, &params->mean);
    read->tensor("rotary_cos", Access::read, &params->rotary_cos);
    read->tensor("rotary_sin", Access::read, &params->rotary_sin);
    read->flag("interleaved", &params->rotary_interleaved);
    read->flag("hadamard", &params->hadamard);
    int64_t seed = 0;
    read->integer("seed", &seed);
    params->seed = static_cast<uint64_t>(seed);
    read->tensor("cu_seqlens", Access::read, &params->cu_seqlens);
    read->tensor("seqused", Access::read, &params->seqused);
    read->integer("max_seqlen", &params->max_seqlen);
    read->flag("transposed", &params->transposed);
    read->integer("engine", &params->engine);
    read->integer("num_threads", &params->num_threads);
  }
  static const fa3_tensor& first(const Params& params) { return params.x; }
};

// Up to three calls of Quantize as one, or of its inverse.
struct QuantizeTogether {
  struct Params {
    fa3_quantize_params calls[FA3_MOST_TOGETHER];
    const fa3_quantize_params* at[FA3_MOST_TOGETHER];
    int32_t count = 0;
  };
  static constexpr const char* kNames[FA3_MOST_TOGETHER] = {"params[0].x", "params[1].x",
                                                            "params[2].x"};

  static void read(Reader* read, Params* params, Access of_x, Access of_y) {
    while (!read->is_at_end() && params->count < FA3_MOST_TOGETHER) {
      fa3_quantize_params* const call = &params->calls[params->count];
      fa3_quantize_params_init(call);
      Quantize::read(read, call, kNames[params->count], of_x, of_y);
      params->at[params->count++] = call;
    }
  }
  static fa3_status run(const Params* params, fa3_workspace_allocator allocate, void* context,
                        void* stream) {
    return fa3_quantize_together_with_allocator(params->at, params->count, allocate, context,
                                                stream);
  }
};

struct DequantizeTogether {
  using Params = QuantizeTogether::Params;
  static void init(Params*) {}
  static void read(Reader* read, Params* params) {
    QuantizeTogether::read(read, params, Access::write, Access::read);
  }
  static fa3_status run(const Params* params, void* stream) {
    return fa3_dequantize_together(params->at, params->count, stream);
  }
};

// On a device lists of the block mask may be kept.
template <class Pass>
bool run_where_tensors_are(typename Pass::Params* params, const Reader& read, const Call& call,
                           GivenLists* lists, Borrowed* borrowed) {
  if (call.first.device_type == FA3_CPU) return run_on_host<Pass>(*params);
  if constexpr (requires { params->options; }) {
    if (!lists->give<Pass>({read.first(), read.second()}, call, borrowed, params)) return false;
  }
  return run_on_device<Pass>(*params, call, borrowed);
}

template <class Pass>
void remember_mask(typename Pass::Params* params, Reader* read) {
  static_assert(offsetof(fa3_options, block_mask_bits) ==
                offsetof(fa3_options, block_mask) + sizeof(fa3_tensor));
  if constexpr (requires { params->options; }) read->remember(&params->options.block_mask);
}

// forward(allocate, ...), backward(allocate, ...), quantize(allocate, ...): then as in read().
// forward_with_score(allocate, score, ...) and that of backward: with a score function. They do not
// read the arguments of a ring's step.
template <class Pass, bool kHasScore = false>
PyObject* run(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  PyObject* allocate = read.object();
  [[maybe_unused]] PyObject* const function = kHasScore ? read.object() : nullptr;
  typename Pass::Params params;
  Pass::init(&params);
  remember_mask<Pass>(&params, &read);
  Pass::read(&read, &params);
  if constexpr (!kHasScore && requires { Pass::read_step(&read, &params); }) {
    Pass::read_step(&read, &params);
  }
  if (!read.done()) return nullptr;
  [[maybe_unused]] ScoreFunction score(&borrowed);
  if constexpr (kHasScore) {
    params.options.score = score.read(function);
    if (params.options.score == nullptr) return nullptr;
  }
  const Call call{Pass::first(params), borrowed.stream(), allocate};
  GivenLists lists;
  const bool ok = run_where_tensors_are<Pass>(&params, read, call, &lists, &borrowed);
  return ok ? Py_NewRef(Py_None) : nullptr;
}

// quantize_together(allocate, ...): then the arguments of each quantize(), one behind the other.
PyObject* quantize_together(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  PyObject* allocate = read.object();
  QuantizeTogether::Params params;
  QuantizeTogether::read(&read, &params, Access::read, Access::write);
  if (!read.done()) return nullptr;
  const Call call{params.calls[0].x, borrowed.stream(), allocate};
  const bool ok = call.first.device_type == FA3_CPU
                      ? run_on_host<QuantizeTogether>(params)
                      : run_on_device<QuantizeTogether>(params, call, &borrowed);
  return ok ? Py_NewRef(Py_None) : nullptr;
}

// forward_workspace(...), backward_workspace(...): as forward() and backward() without `allocate`,
// of tensors without memory. The bytes that the call needs, or the reason why it cannot run.
template <class Pass>
PyObject* workspace(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  typename Pass::Params params;
  Pass::init(&params);
  Pass::read(&read, &params);
  Pass::read_step(&read, &params);
  if (!read.done()) return nullptr;
  size_t bytes = 0;
  return check(Pass::workspace_size(&params, &bytes)) ? PyLong_FromSize_t(bytes) : nullptr;
}

struct Merge {
  using Params = fa3_merge_params;
  static constexpr auto init = fa3_merge_params_init;
  static constexpr auto run = fa3_merge;

  static void read(Reader* read, Params* params) {
    read->tensor("o_partial", Access::read, &params->o_partial);
    read->tensor("lse_partial", Access::read, &params->lse_partial);
    read->tensor("out", Access::write, &params->o);
    read->tensor("lse", Access::write, &params->lse);
    read->integer("num_threads", &params->num_threads);
  }
};

// merge(...), append(...), mla_append(...), mla_gather(...): as in read().
// dequantize_together(...): as quantize_together().
template <class Verb>
PyObject* run_without_workspace(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  typename Verb::Params params;
  Verb::init(&params);
  Verb::read(&read, &params);
  if (!read.done()) return nullptr;
  fa3_status status = FA3_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = Verb::run(&params, borrowed.stream());
  Py_END_ALLOW_THREADS;
  return check(status) ? Py_NewRef(Py_None) : nullptr;
}

// dropout_mask(dropout_p, seed, offset, four firsts, four extents, address); of each four:
// sequence, query head, query and key
PyObject* dropout_mask(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Borrowed borrowed;
  Reader read(arguments, count, &borrowed);
  float dropout_p = 0;
  int64_t numbers[11] = {};
  const char* const names[] = {"seed",  "offset", "sequence", "head",     "query",  "key",
                               "batch", "heads",  "seqlen_q", "seqlen_k", "address"};
  read.real("dropout_p", &dropout_p);
  for (size_t i = 0; i < std::size(names); ++i) read.integer(names[i], &numbers[i]);
  if (!read.done()) return nullptr;
  fa3_status status = FA3_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = fa3_dropout_mask_part(dropout_p, static_cast<uint64_t>(numbers[0]),
                                 static_cast<uint64_t>(numbers[1]), numbers + 2, numbers + 6,
                                 reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(numbers[10])));
  Py_END_ALLOW_THREADS;
  return check(status) ? Py_NewRef(Py_None) : nullptr;
}

// monitor(counts): counts calls from now on, or no longer.
PyObject* monitor(PyObject*, PyObject* counts) {
  const int on = PyObject_IsTrue(counts);
  return on >= 0 && check(fa3_monitor(on)) ? Py_NewRef(Py_None) : nullptr;
}

// monitor_text() -> JSON
PyObject* monitor_text(PyObject*, PyObject*) {
  std::string text;
  size_t needed = 1;
  while (text.size() < needed) {  // calls of other threads make it longer
    text.resize(needed);
    fa3_status status = FA3_OK;
    Py_BEGIN_ALLOW_THREADS;
    status = fa3_monitor_text(text.data(), text.size(), &needed);
    Py_END_ALLOW_THREADS;
    if (!check(status)) return nullptr;
  }
  return PyUnicode_FromString(text.c_str());
}

// engines() -> [(name, available, detail), ...]
PyObject* engines(PyObject*, PyObject*) {
  PyObject* found = PyList_New(0);
  fa3_engine_info info;
  for (int32_t i = 0; found != nullptr && fa3_engine(i, &info) == FA3_OK; ++i) {
    PyObject* entry =
        Py_BuildValue("(sNs)", info.name, PyBool_FromLong(info.available), info.detail);
    if (entry == nullptr || PyList_Append(found, entry) != 0) {
      Py_DECREF(found);
      found = nullptr;
    }
    Py_XDECREF(entry);
  }
  return found;
}

// available_threads(): threads of a call whose num_threads is 0.
PyObject* available_threads(PyObject*, PyObject*) {
  return PyLong_FromLong(fa3::available_threads());
}

PyObject* version(PyObject*, PyObject*) {
  const int32_t number = fa3_version();
  return PyUnicode_FromFormat("%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

template <class Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef g_methods[] = {
    {"forward", fast(run<Forward>), METH_FASTCALL, nullptr},
    {"forward_with_score", fast(run<Forward, true>), METH_FASTCALL, nullptr},
    {"backward_with_score", fast(run<Backward, true>), METH_FASTCALL, nullptr},
    {"backward", fast(run<Backward>), METH_FASTCALL, nullptr},
    {"quantize", fast(run<Quantize>), METH_FASTCALL, nullptr},
    {"quantize_together", fast(quantize_together), METH_FASTCALL, nullptr},
    {"dequantize_together", fast(run_without_workspace<DequantizeTogether>), METH_FASTCALL,
     nullptr},
    {"forward_plan", fast(forward_plan), METH_FASTCALL, nullptr},
    {"forward_advise", fast(forward_advise), METH_FASTCALL, nullptr},
    {"forward_query", fast(forward_query), METH_FASTCALL, nullptr},
    {"backward_query", fast(backward_query), METH_FASTCALL, nullptr},
    {"forward_validate", fast(forward_validate), METH_FASTCALL, nullptr},
    {"forward_workspace", fast(workspace<Forward>), METH_FASTCALL, nullptr},
    {"backward_workspace", fast(workspace<Backward>), METH_FASTCALL, nullptr},
    {"merge", fast(run_without_workspace<Merge>), METH_FASTCALL, nullptr},
    {"append", fast(run_without_workspace<Append>), METH_FASTCALL, nullptr},
    {"mla_forward", fast(run<MlaForward>), METH_FASTCALL, nullptr},
    {"mla_backward", fast(run<MlaBackward>), METH_FASTCALL, nullptr},
    {"mla_plan", fast(mla_plan), METH_FASTCALL, nullptr},
    {"mla_append", fast(run_without_workspace<MlaAppend>), METH_FASTCALL, nullptr},
    {"mla_gather", fast(run_without_workspace<MlaGather>), METH_FASTCALL, nullptr},
    {"backward_supported", fast(backward_supported), METH_FASTCALL, nullptr},
    {"signature", fast(signature), METH_FASTCALL, nullptr},
    {"signature_with_writes", fast(signature_with_writes), METH_FASTCALL, nullptr},
    {"version_of", version_of, METH_O, nullptr},
    {"keep_block_lists", keep_block_lists, METH_O, nullptr},
    {"keep_block_lists_of", keep_block_lists_of, METH_VARARGS, nullptr},
    {"ring_pieces", ring_pieces, METH_VARARGS, nullptr},
    {"ring_rectangles", ring_rectangles, METH_VARARGS, nullptr},
    {"ring_calls", ring_calls, METH_VARARGS, nullptr},
    {"dropout_mask", fast(dropout_mask), METH_FASTCALL, nullptr},
    {"available_threads", available_threads, METH_NOARGS, nullptr},
    {"ffi_handlers", ffi_handlers, METH_NOARGS, nullptr},
    {"engines", engines, METH_NOARGS, nullptr},
    {"monitor", monitor, METH_O, nullptr},
    {"monitor_text", monitor_text, METH_NOARGS, nullptr},
    {"version", version, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef g_module = {
    PyModuleDef_HEAD_INIT,
    "fa3._native",
    "The C ABI of fa3.",
    -1,
    g_methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace
}  // namespace fa3::python

PyMODINIT_FUNC PyInit__native() {
  const bool ok = fa3::python::init_errors() && fa3::python::init_tensor_views() &&
                  fa3::python::init_signatures() && fa3::python::init_kept_lists();
  if (!ok) return nullptr;
  return PyModule_Create(&fa3::python::g_module);
}
