// SPDX-License-Identifier: Apache-2.0
//
// From a Python object to an fa3_tensor: the only place that knows how arrays present themselves.
#pragma once

#define Py_LIMITED_API 0x030A0000  // one build for Python 3.10 and later
#include <Python.h>

#include <fa3/fa3.h>

#include <array>

#include "dlpack.h"
#include "stream.h"

namespace fa3::python {

enum class Access { read, write };

// The arguments of one call: views for the library, and what keeps them alive until it returns.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed();  // waits for results whose framework would not

  // Fills *view from one of
  //   None                                     absent
  //   (address, name of the dtype, device_type, device_index, shape, strides[, the memory's owner])
  //   an object whose type has __dlpack_c_exchange_api__            (torch)
  //   an object with __dlpack__
  // False: a Python exception is set, which starts with `name`.
  bool view(PyObject* object, const char* name, Access access, fa3_tensor* view);

  // Where the object's elements are, of any type; not of None or a tuple.
  bool look_at(PyObject* object, const char* name, Access access, dlpack::Tensor* tensor);

  // Memory on the device of the tensors, from the framework that owns them, until the call returns.
  // Null: it has no function for that, or no memory. Needs no GIL.
  void* lend(size_t bytes);

  // The stream to queue CUDA work on: the current one of the framework that owns the tensors.
  void* stream() const { return stream_.address; }

  // Takes a reference, which it gives up when the call has returned.
  void keep(PyObject* object) { kept_[static_cast<size_t>(num_kept_++)] = object; }

 private:
  bool open_capsule(PyObject* object, const char* name, Access access, dlpack::Tensor* tensor);
  bool take(const dlpack::Tensor& found, Access access, dlpack::Tensor* tensor);

  // Capsules, those of captured tensors and their gradients, and lists of a block mask.
  static constexpr int kMaxKept = 25 + 2 * FA3_MAX_CAPTURED_TENSORS;
  std::array<PyObject*, kMaxKept> kept_{};
  int num_kept_ = 0;
  Stream stream_;  // that of the first tensor on a GPU
  bool has_stream_ = false;
  int wait_on_device_ = -1;                   // the device whose results are waited for; -1: none
  const dlpack::ExchangeApi* api_ = nullptr;  // of the first tensor on a GPU
  dlpack::Device device_{};                   // its
  dlpack::VersionedTensor* lent_ = nullptr;
};

enum class Shown { yes, no, otherwise };  // otherwise: a type that has to be asked in Python

// Where a tensor's elements are, by the table of its type (dlpack::ExchangeApi). Leaves no
// exception but those of forget_error() with `no`.
Shown shown(PyObject* tensor, dlpack::Tensor* view);

// Interns the attribute names; false with a Python exception set.
bool init_tensor_views();

}  // namespace fa3::python
