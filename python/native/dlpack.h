// SPDX-License-Identifier: Apache-2.0
//
// The part of the DLPack 1.x ABI that fa3 reads (dmlc/dlpack, dlpack.h), declared here so that the
// module builds with nothing but a compiler and Python's headers.
#pragma once

#include <cstdint>

namespace fa3::python::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr uint64_t kReadOnlyFlag = 1;

enum class TypeCode : uint8_t {
  integer = 0,
  natural = 1,
  real = 2,
  bfloat = 4,
  float8_e4m3fn = 10,
  float8_e5m2 = 12
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t type;
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means row-major
  uint64_t byte_offset;
};

// In a capsule called "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// In a capsule called "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  Tensor tensor;
};

// type(tensor).__dlpack_c_exchange_api__, a capsule called "dlpack_exchange_api": views of a
// framework's tensors without Python calls, its allocator and its current stream.
struct ExchangeApi {
  Version version;
  void* previous_api;
  // A new tensor of the prototype's shape, type and device; may be null. Needs no GIL.
  int (*allocate)(Tensor* prototype, VersionedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  void* export_managed;
  void* import_managed;
  int (*view)(void* py_object, Tensor* out);  // may be null; borrows, does not synchronise
  int (*current_stream)(int32_t device_type, int32_t device_index, void** stream);
};

}  // namespace fa3::python::dlpack
