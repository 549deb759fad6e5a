// SPDX-License-Identifier: Apache-2.0
//
// The part of XLA's FFI that fa3 uses (openxla/xla, xla/ffi/api/c_api.h), declared here so that the
// module builds without JAX. A C ABI with a version: a handler says which one it was written for,
// XLA refuses one that it does not know, and every struct begins with its size.
// tests/python/arrays/test_jax_abi.py holds these declarations to the header that jaxlib brings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fa3::python::xla {

constexpr int kMajorVersion = 0;
constexpr int kMinorVersion = 3;  // the newest that these declarations were held to
constexpr int kOldestMinorVersion = 1;

struct Error;    // belongs to XLA
struct Context;  // of one call; belongs to XLA

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
constexpr int32_t kMetadataExtension = 1;

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int major;
  int minor;
};

enum class ErrorCode : int32_t {
  invalid_argument = 3,
  resource_exhausted = 8,
  failed_precondition = 9,
  unimplemented = 12,
  internal = 13,
};

struct ErrorCreate {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

enum class DataType : int32_t {
  boolean = 1,
  int32 = 4,
  int64 = 5,
  float16 = 10,
  float32 = 11,
  float64 = 12,
  bfloat16 = 16,
  float8_e5m2 = 19,
  float8_e4m3fn = 20,
};

// Row-major.
struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* shape;
};

enum class OperandType : int32_t { buffer = 1 };

// One struct of operands, one of results.
struct Operands {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  OperandType* types;
  void** values;  // Buffer*, by their types
};

struct Bytes {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

enum class AttributeType : int32_t { scalar = 3, string = 4 };

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeType* types;
  Bytes** names;  // sorted
  void** values;  // Scalar* or Bytes*, by their types
};

struct StreamGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // filled in: a cudaStream_t
};

struct DeviceOrdinalGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int32_t ordinal;  // filled in
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorCreate*);
  void* error_message_destroy_and_register[3];
  Error* (*get_stream)(StreamGet*);
  void* types_states_memory_threads_futures_and_run[12];
  Error* (*get_device_ordinal)(DeviceOrdinalGet*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Operands operands;
  Operands results;
  Attributes attributes;
  void* future;
};

// The traits of a handler.
constexpr uint32_t kCommandBufferCompatible = 1;

struct Metadata {
  size_t struct_size;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace fa3::python::xla
