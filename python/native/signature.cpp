// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>

#include "error.h"

namespace fa3::python {
namespace {

constexpr int kMostDepth = 6;  // of functions and tuples in each other
constexpr size_t kMostKnown = 1024;
constexpr int kMostDims = 16;  // of a tensor

// Packages whose functions follow from their arguments and keep nothing that a user sets.
constexpr std::array<std::string_view, 7> kLibraries = {
    "torch", "numpy", "math", "operator", "_operator", "functools", "_functools"};

PyTypeObject* s_function = nullptr;
PyTypeObject* s_builtin = nullptr;
PyObject *s_code = nullptr, *s_globals = nullptr, *s_defaults = nullptr, *s_keywords = nullptr;
PyObject *s_closure = nullptr, *s_contents = nullptr, *s_dict = nullptr, *s_self = nullptr;
PyObject *s_requires_grad = nullptr, *s_is_neg = nullptr, *s_version = nullptr;
PyObject *s_is_cpu = nullptr, *s_storage = nullptr, *s_resizable = nullptr;
PyObject* s_described[4] = {};  // attributes of a tensor that shows itself in no other way

// A reference of its own.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// An object that is kept, so that its address stays its own; and its number, which no other object
// ever has, also when this one is let go.
struct Known {
  uint64_t number;
  PyObject* names;  // of a code: what names_of() returned
};

// The GIL guards the table. Null with a Python exception set.
const Known* known(PyObject* object, PyObject* names_of = nullptr) {
  static std::unordered_map<PyObject*, Known> table;
  static uint64_t next = 0;
  if (const auto found = table.find(object); found != table.end()) return &found->second;
  PyObject* names = nullptr;
  if (names_of != nullptr) {
    names = PyObject_CallFunctionObjArgs(names_of, object, nullptr);
    if (names == nullptr) return nullptr;
  }
  if (table.size() >= kMostKnown) {
    std::unordered_map<PyObject*, Known> gone;
    gone.swap(table);  // letting go may run code that asks for signatures
    for (const auto& [old, of_old] : gone) {
      Py_DECREF(old);
      Py_XDECREF(of_old.names);
    }
  }
  const auto [place, is_new] = table.try_emplace(object, Known{next, names});
  if (is_new) {
    Py_INCREF(object);
    ++next;
  } else {
    Py_XDECREF(names);
  }
  return &place->second;
}

// Whether a module is one of kLibraries, or a part of one.
bool is_library(PyObject* module) {
  const char* const name = PyModule_GetName(module);
  if (name == nullptr) {
    PyErr_Clear();
    return false;
  }
  const std::string_view whole(name), package = whole.substr(0, whole.find('.'));
  return std::find(kLibraries.begin(), kLibraries.end(), package) != kLibraries.end();
}

// What a method of a built-in class does, which is called in half the time of the method itself;
// null for others.
PyCFunction function_behind(PyObject* object, PyObject* method) {
  const Owned bound(PyObject_GetAttr(object, method));
  PyObject* const found = bound.get();
  if (found == nullptr) PyErr_Clear();
  if (found == nullptr || !PyCFunction_Check(found)) return nullptr;
  return PyCFunction_GetFlags(found) == METH_NOARGS ? PyCFunction_GetFunction(found) : nullptr;
}

// Whether NumPy has the memory of a tensor: torch marks it as one that cannot be resized. False
// with a Python exception set: nobody says.
bool is_shared(PyObject* tensor) {
  const Owned is_cpu(PyObject_GetAttr(tensor, s_is_cpu));
  if (is_cpu.get() != Py_True) return false;
  const Owned storage(PyObject_CallMethodObjArgs(tensor, s_storage, nullptr));
  if (storage.get() == nullptr) return false;
  const Owned answer(PyObject_CallMethodObjArgs(storage.get(), s_resizable, nullptr));
  return answer.get() == Py_False;
}

// version_of() of a tensor; -1 for None.
bool count_writes(PyObject* tensor, int64_t* count) {
  const Owned version(PyObject_GetAttr(tensor, s_version));  // an error in inference mode
  *count = version.get() != nullptr ? PyLong_AsLongLong(version.get()) : -1;
  if (PyErr_Occurred() == nullptr && is_shared(tensor)) *count = -1;
  if (PyErr_Occurred() == nullptr) return true;
  *count = -1;
  return forget_error();
}

// Every part says its kind and, where it varies, its length first: so no two lists of values have
// the same bytes. False: something cannot be told from others, or a Python exception is set.
class Signature {
 public:
  Signature(PyObject* names_of, PyObject* tensor, PyObject* parameter, PyObject* seen,
            bool has_writes)
      : names_of_(names_of),
        tensor_type_(reinterpret_cast<PyTypeObject*>(tensor)),
        parameter_type_(reinterpret_cast<PyTypeObject*>(parameter)),
        seen_(seen),
        has_writes_(has_writes) {
    bytes_.reserve(1024);
  }

  bool add(PyObject* value, int depth = 0, bool captured = false) {
    PyTypeObject* const type = Py_TYPE(value);
    if (type == tensor_type_) return add_tensor(value, captured);
    if (value == Py_None) return put('N');
    if (value == Py_True || value == Py_False) return put(value == Py_True ? '+' : '-');
    if (type == &PyFloat_Type) return put('f') && put(PyFloat_AsDouble(value));
    if (type == &PyLong_Type) return put('i') && add_integer(value);
    if (type == &PyUnicode_Type) return put('s') && add_text(value);
    if (depth > kMostDepth) return false;
    if (type == &PyTuple_Type) return add_tuple(value, depth + 1, captured);
    if (type == &PyDict_Type) return add_dict(value, depth + 1, captured);
    if (type == s_function) return add_function(value, depth + 1);
    if (PyExceptionClass_Check(value)) return put('m') && add_known(value);
    // Whoever holds a module may read anything of it.
    if (PyModule_Check(value)) return is_library(value) && put('m') && add_known(value);
    if (type == s_builtin) return is_free(value) && put('m') && add_known(value);
    if (type == parameter_type_ || (captured && PyType_IsSubtype(type, tensor_type_))) {
      return add_tensor(value, captured);
    }
    return add_number(value);
  }

  PyObject* bytes() const {
    return PyBytes_FromStringAndSize(bytes_.data(), static_cast<Py_ssize_t>(bytes_.size()));
  }

 private:
  template <class T>
  bool put(const T& part) {
    bytes_.append(reinterpret_cast<const char*>(&part), sizeof(part));
    return true;
  }

  bool add_known(PyObject* object, PyObject* names_of = nullptr, PyObject** names = nullptr) {
    const Known* found = known(object, names_of);
    if (found == nullptr) return false;
    if (names != nullptr) *names = found->names;
    return put(found->number);
  }

  bool add_integer(PyObject* number) {
    const int64_t value = PyLong_AsLongLong(number);
    return (value != -1 || PyErr_Occurred() == nullptr) && put(value);
  }

  bool add_text(PyObject* text) {
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) return false;
    put(size);
    bytes_.append(data, static_cast<size_t>(size));
    return true;
  }

  // Whether what a built-in returns follows from its arguments: one that is bound to nothing, to a
  // class or to a module of kLibraries. Others read a clock, or are Python's own, as globals() is.
  bool is_free(PyObject* builtin) {
    const Owned self(PyObject_GetAttr(builtin, s_self));
    if (self.get() == nullptr) return false;
    if (PyModule_Check(self.get())) return is_library(self.get());
    return self.get() == Py_None || PyType_Check(self.get());
  }

  // What NumPy's float64 is, say: it counts as a constant of a function.
  bool add_number(PyObject* value) {
    const bool is_real = PyFloat_Check(value);
    if (!is_real && !PyLong_Check(value) && !PyUnicode_Check(value)) return false;
    put('n') && add_known(reinterpret_cast<PyObject*>(Py_TYPE(value)));
    if (is_real) return put(PyFloat_AsDouble(value));
    return PyLong_Check(value) ? add_integer(value) : add_text(value);
  }

  bool add_tuple(PyObject* tuple, int depth, bool captured) {
    const Py_ssize_t size = PyTuple_Size(tuple);
    put('(') && put(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!add(PyTuple_GetItem(tuple, i), depth, captured)) return false;
    }
    return true;
  }

  bool add_dict(PyObject* dict, int depth, bool captured) {
    put('{') && put(PyDict_Size(dict));
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(dict, &place, &name, &value) != 0;) {
      const Owned held_name(Py_NewRef(name)), held_value(Py_NewRef(value));
      if (!add(name, depth, captured) || !add(value, depth, captured)) return false;
    }
    return true;
  }

  // A value that a code reads by name. uses: the attributes that the code takes of it, see
  // names_of().
  bool add_read(PyObject* value, PyObject* uses, int depth) {
    if (!PyModule_Check(value)) return add(value, depth, true);
    const Py_ssize_t count = PyTuple_Size(uses);
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!add_attribute(value, PyTuple_GetItem(uses, i), 0, false, depth)) return false;
    }
    return true;
  }

  // A module, and what its attributes names[place], names[place + 1], ... lead to, up to the first
  // that is no module; or that one itself. of_library: it is an attribute of a library.
  bool add_attribute(PyObject* value, PyObject* names, Py_ssize_t place, bool of_library,
                     int depth) {
    if (!PyModule_Check(value))
      return of_library ? add_of_library(value, depth) : add(value, depth, true);
    const bool is_of_library = is_library(value);
    if (!(put('m') && add_known(value))) return false;
    if (place == PyTuple_Size(names)) return is_of_library;
    PyObject* const found =
        PyDict_GetItemWithError(PyModule_GetDict(value), PyTuple_GetItem(names, place));
    // A module may make what it does not have, by a function of its own.
    if (found == nullptr) return PyErr_Occurred() == nullptr && is_of_library && put('b');
    const Owned held(Py_NewRef(found));
    return add_attribute(found, names, place + 1, is_of_library, depth);
  }

  // Functions are told by which they are, and what cannot be told from others counts as unchanged.
  bool add_of_library(PyObject* value, int depth) {
    if (Py_TYPE(value) == s_function || Py_TYPE(value) == s_builtin) {
      return put('m') && add_known(value);
    }
    const size_t before = bytes_.size();
    if (add(value, depth, true)) return true;
    if (!forget_error()) return false;
    bytes_.resize(before);
    return put('?');
  }

  bool add_function(PyObject* function, int depth) {
    const Owned code(PyObject_GetAttr(function, s_code));
    const Owned globals(PyObject_GetAttr(function, s_globals));
    PyObject* names = nullptr;
    if (code.get() == nullptr || globals.get() == nullptr) return false;
    if (!(put('F') && add_known(code.get(), names_of_, &names))) return false;
    if (names == Py_None) return false;  // it may read anything
    const Owned held(Py_NewRef(names));
    return add_globals(globals.get(), PyTuple_GetItem(names, 0), depth) &&
           add_own(function, PyTuple_GetItem(names, 1), depth);
  }

  bool add_globals(PyObject* globals, PyObject* reads, int depth) {
    const Py_ssize_t count = PyTuple_Size(reads);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const read = PyTuple_GetItem(reads, i);
      PyObject* const value = PyDict_GetItemWithError(globals, PyTuple_GetItem(read, 0));
      if (value == nullptr) {
        const bool is_builtin = PyTuple_GetItem(read, 2) == Py_True;
        if (PyErr_Occurred() == nullptr && is_builtin && put('b')) continue;
        return false;
      }
      if (!add_read(Owned(Py_NewRef(value)).get(), PyTuple_GetItem(read, 1), depth)) return false;
    }
    return true;
  }

  // Defaults, attributes and cells of a function. uses: of what each cell holds.
  bool add_own(PyObject* function, PyObject* uses, int depth) {
    for (PyObject* attribute : {s_defaults, s_keywords, s_dict}) {
      const Owned given(PyObject_GetAttr(function, attribute));
      if (given.get() == nullptr || !add(given.get(), depth, true)) return false;
    }
    const Owned cells(PyObject_GetAttr(function, s_closure));
    if (cells.get() == nullptr) return false;
    const Py_ssize_t num_cells = cells.get() == Py_None ? 0 : PyTuple_Size(cells.get());
    for (Py_ssize_t i = 0; i < num_cells; ++i) {
      const Owned value(PyObject_GetAttr(PyTuple_GetItem(cells.get(), i), s_contents));
      if (value.get() == nullptr) return false;
      if (!add_read(value.get(), PyTuple_GetItem(uses, i), depth)) return false;
    }
    return true;
  }

  bool add_tensor(PyObject* tensor, bool captured) {
    put(captured ? 'T' : 't');
    if (captured) {
      put(tensor);
      if (seen_ != Py_None && PyList_Append(seen_, tensor) != 0) return false;
      int64_t count = 0;
      if (has_writes_) return count_writes(tensor, &count) && put(count);
      if (!add_known(reinterpret_cast<PyObject*>(Py_TYPE(tensor)))) return false;
    }
    const Owned learns(PyObject_GetAttr(tensor, s_requires_grad));
    if (learns.get() == nullptr) return false;
    put(learns.get() == Py_True);
    dlpack::Tensor view{};
    // Other classes may have no memory (FakeTensor), and warn when they are asked for it.
    const bool has_memory = Py_TYPE(tensor) == tensor_type_ || Py_TYPE(tensor) == parameter_type_;
    switch (has_memory ? shown(tensor, &view) : Shown::otherwise) {
      case Shown::yes:
        return !(!captured && is_real(view) && is_negated(tensor)) && add_view(view);
      case Shown::no:
        return false;
      case Shown::otherwise:
        break;
    }
    if (!captured) return false;
    for (PyObject* attribute : s_described) {
      const Owned value(PyObject_GetAttr(tensor, attribute));
      const Owned text(value.get() != nullptr ? PyObject_Repr(value.get()) : nullptr);
      if (text.get() == nullptr || !add_text(text.get())) return false;
    }
    return true;
  }

  static bool is_real(const dlpack::Tensor& view) {
    const auto code = static_cast<dlpack::TypeCode>(view.dtype.code);
    return code == dlpack::TypeCode::real || code == dlpack::TypeCode::bfloat;
  }

  // Whether the memory holds the numbers without their signs, or nobody says.
  bool is_negated(PyObject* tensor) {
    static const PyCFunction ask = function_behind(tensor, s_is_neg);
    const bool is_known = ask != nullptr && Py_TYPE(tensor) == tensor_type_;
    const Owned answer(is_known ? ask(tensor, nullptr)
                                : PyObject_CallMethodObjArgs(tensor, s_is_neg, nullptr));
    return answer.get() != Py_False;
  }

  bool add_view(const dlpack::Tensor& view) {
    if (view.rank > kMostDims) return false;
    std::array<int64_t, kMostDims + 1> parts;
    int count = 0;
    uint32_t zeros = 0;
    int64_t row_major = 1;
    for (int dim = view.rank - 1; dim >= 0; --dim) {
      const int64_t extent = view.shape[dim];
      const int64_t stride = view.strides != nullptr ? view.strides[dim] : row_major;
      zeros = 2 * zeros + (stride == 0);
      row_major *= extent;
      parts[size_t(count++)] = extent;
    }
    const bool has_dense_rows =
        view.rank == 0 || view.strides == nullptr || view.strides[view.rank - 1] == 1;
    parts[size_t(count++)] = int64_t{2} * zeros + has_dense_rows;
    put(view.dtype) && put(view.device) && put(view.rank);
    bytes_.append(reinterpret_cast<const char*>(parts.data()), size_t(count) * sizeof(parts[0]));
    return true;
  }

  PyObject* names_of_;
  PyTypeObject* tensor_type_;
  PyTypeObject* parameter_type_;
  PyObject* seen_;
  bool has_writes_;
  std::string bytes_;
};

PyObject* signature_of(PyObject* const* arguments, Py_ssize_t count, bool has_writes) {
  if (count < 4) {
    PyErr_SetString(PyExc_TypeError, "fa3._native: too few arguments");
    return nullptr;
  }
  PyObject* const tensor = PyTuple_GetItem(arguments[1], 0);
  PyObject* const parameter = tensor != nullptr ? PyTuple_GetItem(arguments[1], 1) : nullptr;
  const Py_ssize_t num_captured = parameter != nullptr ? PyTuple_Size(arguments[3]) : -1;
  if (num_captured < 0) return nullptr;
  Signature made(arguments[0], tensor, parameter, arguments[2], has_writes);
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < num_captured; ++i) {
    ok = made.add(PyTuple_GetItem(arguments[3], i), 0, true);
  }
  for (Py_ssize_t i = 4; ok && i < count; ++i) ok = made.add(arguments[i]);
  if (ok) return made.bytes();
  return forget_error() ? Py_NewRef(Py_None) : nullptr;
}

}  // namespace

PyObject* signature(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return signature_of(arguments, count, false);
}

PyObject* signature_with_writes(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return signature_of(arguments, count, true);
}

PyObject* version_of(PyObject*, PyObject* tensor) {
  int64_t count = 0;
  if (!count_writes(tensor, &count)) return nullptr;
  return count < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(count);
}

bool init_signatures() {
  const Owned types(PyImport_ImportModule("types"));
  if (types.get() == nullptr) return false;
  const auto type = [&](const char* name) {
    return reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(types.get(), name));
  };
  s_function = type("FunctionType");
  s_builtin = type("BuiltinFunctionType");
  s_code = PyUnicode_InternFromString("__code__");
  s_globals = PyUnicode_InternFromString("__globals__");
  s_defaults = PyUnicode_InternFromString("__defaults__");
  s_keywords = PyUnicode_InternFromString("__kwdefaults__");
  s_closure = PyUnicode_InternFromString("__closure__");
  s_contents = PyUnicode_InternFromString("cell_contents");
  s_dict = PyUnicode_InternFromString("__dict__");
  s_self = PyUnicode_InternFromString("__self__");
  s_requires_grad = PyUnicode_InternFromString("requires_grad");
  s_is_neg = PyUnicode_InternFromString("is_neg");
  s_version = PyUnicode_InternFromString("_version");
  s_is_cpu = PyUnicode_InternFromString("is_cpu");
  s_storage = PyUnicode_InternFromString("untyped_storage");
  s_resizable = PyUnicode_InternFromString("resizable");
  const char* const described[] = {"shape", "dtype", "device", "layout"};
  for (int i = 0; i < 4; ++i) s_described[i] = PyUnicode_InternFromString(described[i]);
  return PyErr_Occurred() == nullptr;
}

}  // namespace fa3::python
