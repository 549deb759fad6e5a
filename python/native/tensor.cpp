// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "dlpack.h"
#include "error.h"

namespace fa3::python {
namespace {

using dlpack::TypeCode;

PyObject* s_exchange_api = nullptr;
PyObject* s_dlpack = nullptr;
PyObject* s_dlpack_device = nullptr;

bool to_int64(PyObject* number, int64_t* value) {
  *value = PyLong_AsLongLong(number);
  return *value != -1 || PyErr_Occurred() == nullptr;
}

bool check_rank(const char* name, int64_t rank) {
  if (rank >= 0 && rank <= FA3_MAX_RANK) return true;
  raise(FA3_INVALID_ARGUMENT, "%s: expected at most %d dimensions, got %d", name,
        static_cast<int>(FA3_MAX_RANK), static_cast<int>(rank));
  return false;
}

// What fa3 calls an element type, and DLPack.
struct ElementType {
  const char* name;
  int32_t dtype;
  TypeCode code;
  uint8_t bits;
};

constexpr ElementType kElementTypes[] = {
    {"float32", FA3_FLOAT32, TypeCode::real, 32},
    {"float16", FA3_FLOAT16, TypeCode::real, 16},
    {"bfloat16", FA3_BFLOAT16, TypeCode::bfloat, 16},
    {"float8_e4m3fn", FA3_FLOAT8_E4M3, TypeCode::float8_e4m3fn, 8},
    {"float8_e5m2", FA3_FLOAT8_E5M2, TypeCode::float8_e5m2, 8},
    {"int32", FA3_INT32, TypeCode::integer, 32},
};

const char* expected_types(std::string_view name) {
  for (const char* integers :
       {"cu_seqlens", "seqused", "page_table", "batch_index", "left_padding", "first_position",
        "block_mask", "indices", "index_count", "extra_ind", "slots", "positions"}) {
    if (name.starts_with(integers)) return "int32";
  }
  for (const char* scalars : {"sink", "lse", "dsink", "dlse", "o_partial", "lse_partial"}) {
    if (name == scalars) return "float32";
  }
  if (name.ends_with("descale") || name.ends_with("mean") || name.starts_with("rotary")) {
    return "float32";
  }
  return "float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
}

void refuse_type(const char* name, const std::string& got) {
  raise(FA3_INVALID_ARGUMENT, "%s: expected %s, got %s; convert it", name, expected_types(name),
        got.c_str());
}

std::string name_of(dlpack::DataType type) {
  const auto code = static_cast<int>(type.code);
  const std::string bits = std::to_string(type.bits);
  constexpr const char* kKinds[] = {"int", "uint", "float", nullptr, "bfloat", "complex"};
  if (code < static_cast<int>(std::size(kKinds)) && kKinds[code] != nullptr && type.lanes == 1) {
    return kKinds[code] + bits;
  }
  if (code == 6) return "bool";
  constexpr const char* kSmall[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                    "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                    "float8_e5m2fnuz", "float8_e8m0fnu"};
  if (code >= 7 && code < 7 + static_cast<int>(std::size(kSmall)) && type.lanes == 1) {
    return kSmall[code - 7];
  }
  return "the DLPack type of code " + std::to_string(code) + ", " + bits + " bits and " +
         std::to_string(type.lanes) + " lanes";
}

bool view_tuple(PyObject* tuple, const char* name, fa3_tensor* view) {
  PyObject *shape = nullptr, *strides = nullptr, *owner = nullptr;
  unsigned long long address = 0;
  const char* type = nullptr;
  if (!PyArg_ParseTuple(tuple,
                        "KsiiO!O!|O;expected (address, dtype, device_type, device_index, "
                        "shape, strides, the memory's owner)",
                        &address, &type, &view->device_type, &view->device_index, &PyTuple_Type,
                        &shape, &PyTuple_Type, &strides, &owner)) {
    return false;
  }
  const auto* found =
      std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                   [&](const ElementType& known) { return std::string_view(known.name) == type; });
  if (found == std::end(kElementTypes)) {
    refuse_type(name, type);
    return false;
  }
  view->dtype = found->dtype;
  view->data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  const Py_ssize_t rank = PyTuple_Size(shape);
  if (!check_rank(name, rank)) return false;
  if (PyTuple_Size(strides) != rank) {
    PyErr_Format(PyExc_TypeError, "%s: expected a stride per dimension", name);
    return false;
  }
  view->rank = static_cast<int32_t>(rank);
  for (Py_ssize_t dim = 0; dim < rank; ++dim) {
    if (!to_int64(PyTuple_GetItem(shape, dim), &view->shape[dim])) return false;
    if (!to_int64(PyTuple_GetItem(strides, dim), &view->stride[dim])) return false;
  }
  return true;
}

// -1 for a type that fa3 has no name for.
int32_t dtype_of(dlpack::DataType type) {
  for (const ElementType& known : kElementTypes) {
    if (type.lanes == 1 && type.bits == known.bits &&
        static_cast<TypeCode>(type.code) == known.code) {
      return known.dtype;
    }
  }
  return -1;
}

bool view_dlpack(const dlpack::Tensor& tensor, const char* name, fa3_tensor* view) {
  view->dtype = dtype_of(tensor.dtype);
  if (view->dtype < 0) {
    refuse_type(name, name_of(tensor.dtype));
    return false;
  }
  if (!check_rank(name, tensor.rank)) return false;
  view->data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  view->device_type = tensor.device.type;
  view->device_index = tensor.device.index;
  view->rank = tensor.rank;
  int64_t row_major = 1;
  for (int dim = tensor.rank - 1; dim >= 0; --dim) {
    view->shape[dim] = tensor.shape[dim];
    view->stride[dim] = tensor.strides != nullptr ? tensor.strides[dim] : row_major;
    row_major *= tensor.shape[dim];
  }
  return true;
}

const dlpack::ExchangeApi* look_up_exchange_api(PyTypeObject* type) {
  PyObject* capsule = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), s_exchange_api);
  const void* found =
      capsule != nullptr ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : nullptr;
  Py_XDECREF(capsule);
  PyErr_Clear();
  const auto* api = static_cast<const dlpack::ExchangeApi*>(found);
  const bool usable =
      api != nullptr && api->version.major == dlpack::kMajorVersion && api->view != nullptr;
  return usable ? api : nullptr;
}

// Remembers the last types seen (torch.Tensor, Parameter, ...); the GIL guards the table.
const dlpack::ExchangeApi* exchange_api_of(PyObject* object) {
  struct Entry {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  static std::array<Entry, 4> table{};
  static size_t next = 0;
  PyTypeObject* type = Py_TYPE(object);
  for (const Entry& entry : table) {
    if (entry.type == type) return entry.api;
  }
  const dlpack::ExchangeApi* api = look_up_exchange_api(type);
  Py_INCREF(type);  // so that its address stays its own
  Py_XDECREF(table[next].type);
  table[next] = {type, api};
  next = (next + 1) % table.size();
  return api;
}

// Calls __dlpack__ as the array API standard says, then as producers older than DLPack 1.0 expect.
// The array's contents are there for what is queued on that stream from now on.
PyObject* call_dlpack(PyObject* object, bool cuda, const void* stream_address) {
  PyObject* method = PyObject_GetAttr(object, s_dlpack);
  if (method == nullptr) return nullptr;
  constexpr uintptr_t kLegacyDefaultStream = 1;  // in DLPack, where 0 is refused
  const auto address = reinterpret_cast<uintptr_t>(stream_address);
  PyObject* stream = cuda ? PyLong_FromUnsignedLongLong(address ? address : kLegacyDefaultStream)
                          : Py_NewRef(Py_None);
  PyObject* nothing = PyTuple_New(0);
  PyObject* keywords = Py_BuildValue("{s:(ii),s:O}", "max_version", 1, 0, "stream", stream);
  PyObject* capsule = nullptr;
  if (nothing != nullptr && keywords != nullptr) {
    capsule = PyObject_Call(method, nothing, keywords);
    if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      PyDict_DelItemString(keywords, "max_version");
      capsule = PyObject_Call(method, nothing, keywords);
    }
  }
  Py_XDECREF(keywords);
  Py_XDECREF(nothing);
  Py_DECREF(stream);
  Py_DECREF(method);
  return capsule;
}

bool is_on_cuda(PyObject* object, const char* name, bool* cuda) {
  PyObject* device = PyObject_CallMethodObjArgs(object, s_dlpack_device, nullptr);
  if (device == nullptr) return false;
  int type = 0, index = 0;
  const bool parsed = PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &index) != 0;
  if (!parsed) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: expected (type, index) from its __dlpack_device__, got %R",
                 name, device);
  }
  Py_DECREF(device);
  *cuda = type == FA3_CUDA;
  return parsed;
}

// A tensor that its framework will not show: no memory (meta, sparse), or on another device.
void refuse_hidden_tensor(PyObject* object, const char* name) {
  PyErr_Clear();
  PyObject* device = PyObject_GetAttrString(object, "device");
  PyErr_Clear();
  raise(FA3_INVALID_ARGUMENT,
        "%s: expected a dense tensor in the memory of the CPU or of a CUDA device, got a %R on %S",
        name, Py_TYPE(object), device != nullptr ? device : Py_None);
  Py_XDECREF(device);
}

}  // namespace

Borrowed::~Borrowed() {
  if (wait_on_device_ >= 0) {
    Py_BEGIN_ALLOW_THREADS;
    wait_for_default_stream(wait_on_device_);
    Py_END_ALLOW_THREADS;
  }
  if (lent_ != nullptr && lent_->deleter != nullptr) lent_->deleter(lent_);
  for (int i = 0; i < num_kept_; ++i) Py_DECREF(kept_[static_cast<size_t>(i)]);
}

bool Borrowed::view(PyObject* object, const char* name, Access access, fa3_tensor* view) {
  *view = {};
  if (object == Py_None) return true;
  if (PyTuple_Check(object)) return view_tuple(object, name, view);
  dlpack::Tensor tensor{};
  return look_at(object, name, access, &tensor) && view_dlpack(tensor, name, view);
}

bool Borrowed::look_at(PyObject* object, const char* name, Access access, dlpack::Tensor* tensor) {
  const dlpack::ExchangeApi* api = exchange_api_of(object);
  if (api == nullptr) return open_capsule(object, name, access, tensor);
  if (api->view(object, tensor) != 0) {
    refuse_hidden_tensor(object, name);
    return false;
  }
  const auto [type, index] = tensor->device;
  if (type != FA3_CUDA || has_stream_) return true;
  has_stream_ = stream_.is_current = true;
  api_ = api;
  device_ = tensor->device;
  return api->current_stream(type, index, &stream_.address) == 0;
}

void* Borrowed::lend(size_t bytes) {
  if (api_ == nullptr || api_->allocate == nullptr || lent_ != nullptr) return nullptr;
  auto extent = static_cast<int64_t>(bytes);
  dlpack::Tensor bytes_there{};
  bytes_there.device = device_;
  bytes_there.rank = 1;
  bytes_there.dtype = {static_cast<uint8_t>(TypeCode::natural), 8, 1};
  bytes_there.shape = &extent;
  const auto ignore = [](void*, const char*, const char*) {};
  if (api_->allocate(&bytes_there, &lent_, nullptr, ignore) != 0) lent_ = nullptr;
  if (lent_ == nullptr) return nullptr;
  return static_cast<char*>(lent_->tensor.data) + lent_->tensor.byte_offset;
}

bool Borrowed::open_capsule(PyObject* object, const char* name, Access access,
                            dlpack::Tensor* tensor) {
  if (!PyObject_HasAttr(object, s_dlpack)) {
    PyErr_Format(PyExc_TypeError,
                 "%s: expected an array (numpy, torch, or any object with __dlpack__), got %R",
                 name, Py_TYPE(object));
    return false;
  }
  bool cuda = false;
  if (!is_on_cuda(object, name, &cuda)) return false;
  if (cuda && !has_stream_) {
    if (!find_stream(object, &stream_)) return false;
    has_stream_ = true;
  }
  PyObject* capsule = call_dlpack(object, cuda, stream_.address);
  if (capsule == nullptr) return false;
  keep(capsule);
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed = static_cast<const dlpack::VersionedTensor*>(
        PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajorVersion) {
      raise(FA3_INVALID_ARGUMENT, "%s: expected DLPack version 1, got version %u", name,
            managed->version.major);
      return false;
    }
    if (access == Access::write && (managed->flags & dlpack::kReadOnlyFlag) != 0) {
      raise(FA3_INVALID_ARGUMENT, "%s: expected memory that may be written, got a read-only array",
            name);
      return false;
    }
    return take(managed->tensor, access, tensor);
  }
  if (!PyCapsule_IsValid(capsule, "dltensor")) {
    PyErr_Format(PyExc_TypeError, "%s: expected a DLPack capsule from its __dlpack__, got %R", name,
                 capsule);
    return false;
  }
  const auto* managed =
      static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  return take(managed->tensor, access, tensor);
}

bool Borrowed::take(const dlpack::Tensor& found, Access access, dlpack::Tensor* tensor) {
  *tensor = found;
  const bool is_result = access == Access::write && found.device.type == FA3_CUDA;
  if (is_result && !stream_.is_current) wait_on_device_ = found.device.index;
  return true;
}

Shown shown(PyObject* tensor, dlpack::Tensor* view) {
  const dlpack::ExchangeApi* api = exchange_api_of(tensor);
  if (api == nullptr) return Shown::otherwise;
  if (api->view(tensor, view) == 0) return Shown::yes;
  forget_error();
  return Shown::no;
}

bool init_tensor_views() {
  s_exchange_api = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  s_dlpack = PyUnicode_InternFromString("__dlpack__");
  s_dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
  return s_exchange_api != nullptr && s_dlpack != nullptr && s_dlpack_device != nullptr;
}

}  // namespace fa3::python
