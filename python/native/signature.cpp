// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include <array>
#include <string>
#include <unordered_map>

#include "error.h"

namespace fa3::python {
namespace {

constexpr int kMostDepth = 5;  // of functions and tuples in each other
constexpr size_t kMostKnown = 1024;
constexpr int kMostDims = 16;  // of a tensor

PyTypeObject* s_function = nullptr;
PyTypeObject* s_builtin = nullptr;
PyObject *s_code = nullptr, *s_globals = nullptr, *s_defaults = nullptr, *s_keywords = nullptr;
PyObject *s_closure = nullptr, *s_contents = nullptr, *s_dict = nullptr, *s_self = nullptr;
PyObject *s_requires_grad = nullptr, *s_is_neg = nullptr;
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
  PyObject* names;  // of a code: (globals, attributes) that it names
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

// What a method of a built-in class does, which is called in half the time of the method itself;
// null for others.
PyCFunction function_behind(PyObject* object, PyObject* method) {
  const Owned bound(PyObject_GetAttr(object, method));
  PyObject* const found = bound.get();
  if (found == nullptr) PyErr_Clear();
  if (found == nullptr || !PyCFunction_Check(found)) return nullptr;
  return PyCFunction_GetFlags(found) == METH_NOARGS ? PyCFunction_GetFunction(found) : nullptr;
}

// Every part says its kind and, where it varies, its length first: so no two lists of values have
// the same bytes. False: something cannot be told from others, or a Python exception is set.
class Signature {
 public:
  Signature(PyObject* names_of, PyObject* tensor, PyObject* parameter, PyObject* seen)
      : names_of_(names_of),
        tensor_type_(reinterpret_cast<PyTypeObject*>(tensor)),
        parameter_type_(reinterpret_cast<PyTypeObject*>(parameter)),
        seen_(seen) {
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
    if (PyModule_Check(value)) return put('m') && add_known(value) && add_module(value, depth + 1);
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

  // Whether a built-in is bound to nothing, or to a module or a class: what it does then follows
  // from its arguments alone.
  bool is_free(PyObject* builtin) {
    const Owned self(PyObject_GetAttr(builtin, s_self));
    if (self.get() == nullptr) return false;
    return self.get() == Py_None || PyModule_Check(self.get()) || PyType_Check(self.get());
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

  // What the function that is looked at names of a module, which may have anything: what cannot be
  // told from others there counts as unchanged, and functions are told by which they are.
  bool add_module(PyObject* module, int depth) {
    PyObject* const attributes = PyModule_GetDict(module);
    const Py_ssize_t count = attributes_ != nullptr ? PyTuple_Size(attributes_) : 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const found = PyDict_GetItemWithError(attributes, PyTuple_GetItem(attributes_, i));
      if (found == nullptr && PyErr_Occurred() != nullptr) return false;
      if (found == nullptr && put('b')) continue;
      const Owned value(Py_NewRef(found));
      const size_t before = bytes_.size();
      const bool is_function = Py_TYPE(found) == s_function || Py_TYPE(found) == s_builtin;
      if (is_function ? put('m') && add_known(found) : add(found, depth, true)) continue;
      if (!forget_error()) return false;
      bytes_.resize(before);
      put('?');
    }
    return true;
  }

  bool add_function(PyObject* function, int depth) {
    const Owned code(PyObject_GetAttr(function, s_code));
    const Owned globals(PyObject_GetAttr(function, s_globals));
    PyObject* names = nullptr;
    if (code.get() == nullptr || globals.get() == nullptr) return false;
    if (!(put('F') && add_known(code.get(), names_of_, &names))) return false;
    const Owned held(Py_NewRef(names));
    PyObject* const outer = attributes_;
    attributes_ = PyTuple_GetItem(names, 1);
    const bool ok = add_parts(function, globals.get(), PyTuple_GetItem(names, 0), depth);
    attributes_ = outer;
    return ok;
  }

  bool add_parts(PyObject* function, PyObject* globals, PyObject* names, int depth) {
    const Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const value = PyDict_GetItemWithError(globals, PyTuple_GetItem(names, i));
      if (value == nullptr && PyErr_Occurred() != nullptr) return false;
      if (value == nullptr && put('b')) continue;  // Python's own, such as float
      if (!add(Owned(Py_NewRef(value)).get(), depth, true)) return false;
    }
    for (PyObject* attribute : {s_defaults, s_keywords, s_dict}) {
      const Owned given(PyObject_GetAttr(function, attribute));
      if (given.get() == nullptr || !add(given.get(), depth, true)) return false;
    }
    const Owned cells(PyObject_GetAttr(function, s_closure));
    if (cells.get() == nullptr) return false;
    const Py_ssize_t num_cells = cells.get() == Py_None ? 0 : PyTuple_Size(cells.get());
    for (Py_ssize_t i = 0; i < num_cells; ++i) {
      const Owned value(PyObject_GetAttr(PyTuple_GetItem(cells.get(), i), s_contents));
      if (value.get() == nullptr || !add(value.get(), depth, true)) return false;
    }
    return true;
  }

  bool add_tensor(PyObject* tensor, bool captured) {
    put(captured ? 'T' : 't');
    if (captured) {
      put(tensor) && add_known(reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
      if (seen_ != Py_None && PyList_Append(seen_, tensor) != 0) return false;
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
  PyObject* attributes_ = nullptr;  // that the function names which is being looked at
  std::string bytes_;
};

}  // namespace

PyObject* signature(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 4) {
    PyErr_SetString(PyExc_TypeError, "fa3._native: too few arguments");
    return nullptr;
  }
  PyObject* const tensor = PyTuple_GetItem(arguments[1], 0);
  PyObject* const parameter = tensor != nullptr ? PyTuple_GetItem(arguments[1], 1) : nullptr;
  const Py_ssize_t num_captured = parameter != nullptr ? PyTuple_Size(arguments[3]) : -1;
  if (num_captured < 0) return nullptr;
  Signature made(arguments[0], tensor, parameter, arguments[2]);
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < num_captured; ++i) {
    ok = made.add(PyTuple_GetItem(arguments[3], i), 0, true);
  }
  for (Py_ssize_t i = 4; ok && i < count; ++i) ok = made.add(arguments[i]);
  if (ok) return made.bytes();
  return forget_error() ? Py_NewRef(Py_None) : nullptr;
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
  const char* const described[] = {"shape", "dtype", "device", "layout"};
  for (int i = 0; i < 4; ++i) s_described[i] = PyUnicode_InternFromString(described[i]);
  return PyErr_Occurred() == nullptr;
}

}  // namespace fa3::python
