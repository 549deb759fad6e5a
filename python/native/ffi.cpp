// SPDX-License-Identifier: Apache-2.0
#include "ffi.h"

#include "error.h"
#include "passes.h"
#include "xla_ffi.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

namespace fa3::python {
namespace {

// XLA aligns buffers to less than what the library wants of a workspace: its caller asks for as
// many bytes more.
constexpr size_t kWorkspaceAlignment = 256;

struct ElementType {
  xla::DataType type;
  fa3_dtype dtype;
};

constexpr ElementType kElementTypes[] = {
    {xla::DataType::float32, FA3_FLOAT32},         {xla::DataType::float16, FA3_FLOAT16},
    {xla::DataType::bfloat16, FA3_BFLOAT16},       {xla::DataType::float8_e4m3fn, FA3_FLOAT8_E4M3},
    {xla::DataType::float8_e5m2, FA3_FLOAT8_E5M2}, {xla::DataType::int32, FA3_INT32},
};

// A call of XLA by names. Attributes "operands" and "results" name the buffers, in order and with
// one space between them; every other attribute is an option, under its name in fa3/_options.py.
// After the first failure every further read does nothing.
class FrameReader {
 public:
  FrameReader(const xla::CallFrame& frame, fa3_device_type device_type, int32_t device_index)
      : frame_(frame), device_type_(device_type), device_index_(device_index) {
    operands_ = string_attribute("operands");
    results_ = string_attribute("results");
  }

  void rest_is_optional() {}  // everything is, here

  void tensor(std::string_view name, Access access, fa3_tensor* view) {
    *view = {};
    const xla::Buffer* buffer = access == Access::read ? find(name, operands_, frame_.operands)
                                                       : find(name, results_, frame_.results);
    if (buffer == nullptr) return;
    if (access == Access::write) {  // an operand of that name is what is written in place
      const xla::Buffer* before = find(name, operands_, frame_.operands);
      if (before != nullptr && before->data != buffer->data) {
        return fail(name, "an operand that shares the memory of its result");
      }
    }
    const auto* found =
        std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                     [&](const ElementType& known) { return known.type == buffer->dtype; });
    if (found == std::end(kElementTypes) || buffer->rank > FA3_MAX_RANK) {
      return fail(name, "an array of fa3's types and ranks");
    }
    view->data = buffer->data;
    view->dtype = found->dtype;
    view->device_type = device_type_;
    view->device_index = device_index_;
    view->rank = static_cast<int32_t>(buffer->rank);
    int64_t stride = 1;
    for (int32_t dim = view->rank - 1; dim >= 0; --dim) {
      view->shape[dim] = buffer->shape[dim];
      view->stride[dim] = stride;
      stride *= std::max<int64_t>(buffer->shape[dim], 1);
    }
  }

  template <class Integer>
  void integer(std::string_view name, Integer* value) {
    int64_t wide = *value;
    scalar(name, xla::DataType::int64, "an integer of 64 bits", &wide);
    *value = static_cast<Integer>(wide);
    if (*value != wide) fail(name, "an integer of 32 bits");
  }

  void real(std::string_view name, float* value) {
    double wide = static_cast<double>(*value);
    scalar(name, xla::DataType::float64, "a number of 64 bits", &wide);
    *value = static_cast<float>(wide);
  }

  void optional_real(std::string_view name, float* value) { real(name, value); }

  void flag(std::string_view name, int32_t* value) {
    uint8_t truth = *value != 0;
    scalar(name, xla::DataType::boolean, "a truth value", &truth);
    *value = truth;
  }

  // The result "workspace"; null where there is none. *bytes are those behind the alignment.
  void* workspace(size_t* bytes) {
    const xla::Buffer* buffer = find("workspace", results_, frame_.results);
    *bytes = 0;
    if (buffer == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(buffer->data);
    const uintptr_t aligned = (address + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1);
    const auto size = static_cast<size_t>(buffer->rank == 1 ? buffer->shape[0] : 0);
    *bytes = size - std::min<size_t>(size, aligned - address);
    return reinterpret_cast<void*>(aligned);
  }

  // After the last reader. Empty, or the sentence that refuses the call: also one that has what no
  // reader asked for, which a program that a later version exported may have.
  const std::string& refusal() {
    const int64_t given = frame_.attributes.size + frame_.operands.size + frame_.results.size;
    if (refusal_.empty() && taken_ != given) {
      refusal_ = "fa3: expected a call of this version's making, got " + std::to_string(given) +
                 " operands, results and attributes, of which it knows " + std::to_string(taken_) +
                 "; trace the program again";
    }
    return refusal_;
  }

  // A call that cannot be read.
  void refuse(const char* sentence) {
    if (refusal_.empty()) refusal_ = sentence;
  }

 private:
  void fail(std::string_view name, const char* expected) {
    if (refusal_.empty()) refusal_ = in_words_of_python(name) + ": expected " + expected;
  }

  // The value of an attribute; null where the call does not have it.
  const void* attribute(std::string_view name, xla::AttributeType type) {
    const xla::Attributes& all = frame_.attributes;
    for (int64_t i = 0; i < all.size; ++i) {
      if (std::string_view(all.names[i]->data, all.names[i]->size) != name) continue;
      ++taken_;
      if (all.types[i] == type) return all.values[i];
      fail(name, "an attribute of another kind");
    }
    return nullptr;
  }

  std::string_view string_attribute(std::string_view name) {
    const auto* text = static_cast<const xla::Bytes*>(attribute(name, xla::AttributeType::string));
    return text != nullptr ? std::string_view(text->data, text->size) : std::string_view();
  }

  template <class Value>
  void scalar(std::string_view name, xla::DataType type, const char* expected, Value* value) {
    const auto* found =
        static_cast<const xla::Scalar*>(attribute(name, xla::AttributeType::scalar));
    if (found == nullptr) return;
    if (found->dtype != type) return fail(name, expected);
    std::memcpy(value, found->value, sizeof(Value));
  }

  // The buffer of that name; null where the call does not have it.
  const xla::Buffer* find(std::string_view name, std::string_view names,
                          const xla::Operands& buffers) {
    for (int64_t i = 0; i < buffers.size && !names.empty(); ++i) {
      const size_t end = std::min(names.find(' '), names.size());
      if (names.substr(0, end) == name) {
        ++taken_;
        if (buffers.types[i] == xla::OperandType::buffer) {
          return static_cast<const xla::Buffer*>(buffers.values[i]);
        }
        fail(name, "a buffer");
      }
      names.remove_prefix(std::min(end + 1, names.size()));
    }
    return nullptr;
  }

  const xla::CallFrame& frame_;
  fa3_device_type device_type_;
  int32_t device_index_;
  std::string_view operands_;
  std::string_view results_;
  int64_t taken_ = 0;
  std::string refusal_;
};

xla::ErrorCode code_of(fa3_status status) {
  switch (status) {
    case FA3_INVALID_ARGUMENT:
      return xla::ErrorCode::invalid_argument;
    case FA3_UNSUPPORTED:
      return xla::ErrorCode::unimplemented;
    case FA3_WORKSPACE_TOO_SMALL:
      return xla::ErrorCode::failed_precondition;
    case FA3_OUT_OF_MEMORY:
      return xla::ErrorCode::resource_exhausted;
    default:
      return xla::ErrorCode::internal;
  }
}

xla::Error* error(const xla::Api& api, fa3_status status, const std::string& sentence) {
  xla::ErrorCreate arguments{sizeof(arguments), nullptr, sentence.c_str(), code_of(status)};
  return api.create_error(&arguments);
}

// An older XLA is told its own version, since it has what these handlers use of it. The oldest,
// 0.1, asks without an API.
void describe(const xla::Api* api, uint32_t traits, xla::Metadata* metadata) {
  const bool known = api != nullptr && api->version.major == xla::kMajorVersion;
  metadata->version.major = xla::kMajorVersion;
  metadata->version.minor = api == nullptr ? xla::kOldestMinorVersion : xla::kMinorVersion;
  if (known) metadata->version.minor = std::min(api->version.minor, xla::kMinorVersion);
  metadata->traits = traits;
}

// XLA counts a struct up to the end of its last field.
bool is_known(const xla::CallFrame& frame) {
  return frame.struct_size >= offsetof(xla::CallFrame, future) &&
         frame.operands.struct_size >= sizeof(xla::Operands) &&
         frame.results.struct_size >= sizeof(xla::Operands) &&
         frame.attributes.struct_size >= sizeof(xla::Attributes);
}

// Where a call runs: nothing to know on a CPU.
struct Place {
  void* stream = nullptr;
  int32_t device_index = 0;
};

xla::Error* find_place(const xla::CallFrame& frame, Place* place) {
  const xla::Api& api = *frame.api;
  if (api.struct_size < offsetof(xla::Api, get_device_ordinal) + sizeof(void*)) {
    return error(api, FA3_UNSUPPORTED,
                 "fa3: expected an XLA that tells a call its device; update jax and jaxlib");
  }
  xla::StreamGet stream{sizeof(stream), nullptr, frame.context, nullptr};
  if (xla::Error* failed = api.get_stream(&stream)) return failed;
  xla::DeviceOrdinalGet device{sizeof(device), nullptr, frame.context, 0};
  if (xla::Error* failed = api.get_device_ordinal(&device)) return failed;
  *place = {stream.stream, device.ordinal};
  return nullptr;
}

// A call of the compiled program: on the CPU it returns when the results are there, on CUDA when
// the work is queued on XLA's stream. Nothing of a queued call depends on values in device memory,
// so that it may be recorded into a command buffer.
template <class Pass, fa3_device_type kDevice>
xla::Error* handle(xla::CallFrame* frame) {
  if (frame->extensions != nullptr && frame->extensions->type == xla::kMetadataExtension) {
    const auto* asked = reinterpret_cast<xla::MetadataExtension*>(frame->extensions);
    describe(frame->api, kDevice == FA3_CUDA ? xla::kCommandBufferCompatible : 0, asked->metadata);
    return nullptr;
  }
  const xla::Api& api = *frame->api;
  if (!is_known(*frame)) {
    return error(api, FA3_UNSUPPORTED, "fa3: expected a call of XLA's FFI, version 0.1 to 0.3");
  }
  Place place;
  if (kDevice == FA3_CUDA) {
    if (xla::Error* failed = find_place(*frame, &place)) return failed;
  }
  FrameReader read(*frame, kDevice, place.device_index);
  typename Pass::Params params;
  Pass::init(&params);
  Pass::read(&read, &params);
  size_t bytes = 0;
  void* workspace = read.workspace(&bytes);
  if (!read.refusal().empty()) return error(api, FA3_INVALID_ARGUMENT, read.refusal());
  const fa3_status status = Pass::run_within(&params, workspace, bytes, place.stream);
  if (status == FA3_OK) return nullptr;
  return error(api, status, in_words_of_python(fa3_last_error()));
}

struct Handler {
  const char* name;
  const char* platform;
  xla::Error* (*handle)(xla::CallFrame*);
};

constexpr Handler kHandlers[] = {
    {"fa3_forward", "cpu", handle<Forward, FA3_CPU>},
    {"fa3_forward", "CUDA", handle<Forward, FA3_CUDA>},
    {"fa3_backward", "cpu", handle<Backward, FA3_CPU>},
    {"fa3_backward", "CUDA", handle<Backward, FA3_CUDA>},
    {"fa3_append", "cpu", handle<Append, FA3_CPU>},
    {"fa3_append", "CUDA", handle<Append, FA3_CUDA>},
};

}  // namespace

PyObject* ffi_handlers(PyObject*, PyObject*) {
  PyObject* found = PyList_New(0);
  for (const Handler& handler : kHandlers) {
    if (found == nullptr) break;
    PyObject* entry =
        Py_BuildValue("(ssN)", handler.name, handler.platform,
                      PyCapsule_New(reinterpret_cast<void*>(handler.handle), nullptr, nullptr));
    if (entry == nullptr || PyList_Append(found, entry) != 0) {
      Py_DECREF(found);
      found = nullptr;
    }
    Py_XDECREF(entry);
  }
  return found;
}

}  // namespace fa3::python
