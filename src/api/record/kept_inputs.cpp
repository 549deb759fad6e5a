// SPDX-License-Identifier: Apache-2.0
#include "api/record/kept_inputs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/dtype.h"
#include "core/error.h"

namespace fa3::api {
namespace {

constexpr const char* kPrefix = "fa3-";

DType dtype_of(const fa3_tensor& view) {
  return static_cast<DType>(view.dtype);
}

int64_t count_of(const fa3_tensor& view) {
  int64_t count = 1;
  for (int32_t dim = 0; dim < view.rank; ++dim) count *= view.shape[dim];
  return count;
}

// From the first element to behind the last one.
int64_t span_bytes(const fa3_tensor& view) {
  if (count_of(view) == 0) return 0;
  int64_t last = 0;
  for (int32_t dim = 0; dim < view.rank; ++dim) last += (view.shape[dim] - 1) * view.stride[dim];
  return (last + 1) * size_of(dtype_of(view));
}

// Copies memory of the engine's to the host's.
Status fetch(const EndedCall& ended, const fa3_tensor& place, const void* from, int64_t bytes,
             void* to) {
  if (ended.engine.read_back == nullptr || place.device_type == FA3_CPU) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return {};
  }
  return ended.engine.read_back(to, from, bytes, place.device_index, ended.stream);
}

// The elements, row-major.
Status elements_of(const EndedCall& ended, const fa3_tensor& view, std::string* elements) {
  const int64_t size = size_of(dtype_of(view)), count = count_of(view);
  std::string span(static_cast<size_t>(span_bytes(view)), '\0');
  Status status = fetch(ended, view, view.data, span_bytes(view), span.data());
  if (!status.ok() || is_dense(view)) {
    *elements = std::move(span);
    return status;
  }
  elements->resize(static_cast<size_t>(count * size));
  int64_t at[FA3_MAX_RANK] = {};
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (int32_t dim = 0; dim < view.rank; ++dim) offset += at[dim] * view.stride[dim];
    std::memcpy(elements->data() + i * size, span.data() + offset * size,
                static_cast<size_t>(size));
    for (int32_t dim = view.rank - 1; dim >= 0 && ++at[dim] == view.shape[dim]; --dim) at[dim] = 0;
  }
  return {};
}

template <class T>
int64_t count_not_finite_as(const std::string& elements) {
  int64_t count = 0;
  for (size_t i = 0; i < elements.size(); i += sizeof(T)) {
    T element;
    std::memcpy(&element, elements.data() + i, sizeof(T));
    count += std::isfinite(to_float(element)) ? 0 : 1;
  }
  return count;
}

int64_t count_not_finite(const fa3_tensor& view, const std::string& elements) {
  switch (dtype_of(view)) {
    case DType::float32:
      return count_not_finite_as<float>(elements);
    case DType::float16:
      return count_not_finite_as<Float16>(elements);
    case DType::bfloat16:
      return count_not_finite_as<BFloat16>(elements);
    case DType::float8_e4m3:
      return count_not_finite_as<Float8E4M3>(elements);
    case DType::float8_e5m2:
      return count_not_finite_as<Float8E5M2>(elements);
    case DType::int32:
      break;
  }
  return 0;
}

// An LSE and a sink may be infinite: a row without keys is.
bool may_be_infinite(const RecordedTensor& tensor) {
  const std::string name = tensor.name;
  return name == "lse" || name == "lse_partial" || name == "max_logit" || name == "sink";
}

// "o has 3 of 64 numbers that are not finite"; "" if there are none. Of results, or of inputs.
Status find_not_finite(const EndedCall& ended, bool written, std::string* found) {
  for (const RecordedTensor& tensor : ended.call.tensors) {
    if (tensor.written != written || may_be_infinite(tensor)) continue;
    std::string elements;
    Status status = elements_of(ended, *tensor.view, &elements);
    if (!status.ok()) return status;
    const int64_t count = count_not_finite(*tensor.view, elements);
    if (count == 0) continue;
    *found = concat(tensor.name, " has ", count, " of ", count_of(*tensor.view),
                    " numbers that are not finite");
    return {};
  }
  return {};
}

std::string in_quotes(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

const char* name_in_file(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "F32";
    case DType::float16:
      return "F16";
    case DType::bfloat16:
      return "BF16";
    case DType::float8_e4m3:
      return "F8_E4M3";
    case DType::float8_e5m2:
      return "F8_E5M2";
    case DType::int32:
      return "I32";
  }
  return "U8";
}

template <class Numbers>
std::string list(const Numbers* begin, int32_t count) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += concat(i == 0 ? "" : ",", begin[i]);
  return "[" + text + "]";
}

class File {
 public:
  void note(const std::string& name, const std::string& value) {
    notes_ += concat(notes_.empty() ? "" : ",", in_quotes(name), ":", in_quotes(value));
  }
  void add(const char* name, const fa3_tensor& view, const std::string& elements) {
    const size_t begin = data_.size();
    data_ += elements;
    entries_ += concat(",", in_quotes(name), R"(:{"dtype":")", name_in_file(dtype_of(view)),
                       R"(","shape":)", list(view.shape, view.rank), R"(,"data_offsets":[)", begin,
                       ",", data_.size(), "]}");
  }
  // Under another name until it is whole. False: the system did not take it.
  bool write(const std::string& path) const {
    const std::string header = concat(R"({"__metadata__":{)", notes_, "}", entries_, "}");
    const uint64_t length = header.size();
    const std::string unfinished = path + ".part";
    std::FILE* const file = std::fopen(unfinished.c_str(), "wxe");
    if (file == nullptr) return false;
    bool ok = std::fwrite(&length, sizeof(length), 1, file) == 1;
    ok = ok && std::fwrite(header.data(), 1, header.size(), file) == header.size();
    ok = ok && std::fwrite(data_.data(), 1, data_.size(), file) == data_.size();
    ok = std::fclose(file) == 0 && ok;
    ok = ok && std::rename(unfinished.c_str(), path.c_str()) == 0;
    if (!ok) std::remove(unfinished.c_str());
    return ok;
  }

 private:
  std::string notes_, entries_, data_;
};

Status read_inputs(const EndedCall& ended, File* file) {
  for (const RecordedTensor& tensor : ended.call.tensors) {
    const fa3_tensor& view = *tensor.view;
    if (!is_dense(view)) file->note(concat(tensor.name, ".strides"), list(view.stride, view.rank));
    if (tensor.written) {  // what a call of the same kind needs memory for
      file->note(concat(tensor.name, ".shape"), list(view.shape, view.rank));
      file->note(concat(tensor.name, ".dtype"), name_of(dtype_of(view)));
      continue;
    }
    std::string elements;
    Status status = elements_of(ended, view, &elements);
    if (!status.ok()) return status;
    file->add(tensor.name, view, elements);
  }
  const fa3_options* const options = ended.options;
  if (options == nullptr || options->dropout_seed_at == nullptr) return {};
  uint64_t seed = 0, offset = 0;
  const fa3_tensor& q = *ended.call.tensors.front().view;
  Status status = fetch(ended, q, options->dropout_seed_at, sizeof(seed), &seed);
  if (status.ok()) status = fetch(ended, q, options->dropout_offset_at, sizeof(offset), &offset);
  file->note("dropout_seed", concat(seed));
  file->note("dropout_offset", concat(offset));
  return status;
}

// A stream that is captured into a graph takes no marks, and nobody may wait for it.
bool is_captured(const EndedCall& ended, int device) {
  const EngineClock* const clock = ended.engine.clock;
  if (clock == nullptr) return false;
  void* const mark = clock->mark(device, ended.stream);
  if (mark == nullptr) return true;
  void* const end = clock->mark(device, ended.stream);
  double unused = 0;
  if (end != nullptr) clock->between(mark, end, true, &unused);
  return end == nullptr;
}

int files_in(const std::string& folder) {
  int count = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    count += entry.path().filename().string().starts_with(kPrefix) ? 1 : 0;
  }
  return count;
}

}  // namespace

std::string keep_inputs(const EndedCall& ended, const std::string& folder,
                        const std::string& failure) {
  static constinit std::atomic<int> files = 0;
  const RecordedCall& call = ended.call;
  if (!call.can_be_kept) return failure.empty() ? "" : "not kept: see docs/monitoring.md";
  int64_t bytes = 0;
  for (const RecordedTensor& tensor : call.tensors) {
    bytes += std::max(span_bytes(*tensor.view), count_of(*tensor.view) * 4);
  }
  const bool is_too_large = bytes > kMostBytes;
  if (files >= kMostFiles || (is_too_large && failure.empty())) return "";
  if (is_too_large) return concat("not kept: ", bytes, " bytes, more than ", kMostBytes);
  if (is_captured(ended, call.tensors.front().view->device_index)) return "";
  std::string reason = failure;
  if (failure.empty()) {
    Status status = find_not_finite(ended, true, &reason);
    if (!status.ok()) return concat("not kept: ", status.message());
    if (reason.empty()) return "";
    std::string before;
    status = find_not_finite(ended, false, &before);
    if (!before.empty()) return concat(reason, "; not kept: so are inputs: ", before);
  }
  const int number = files.fetch_add(1);
  if (number >= kMostFiles) return "";
  if (files_in(folder) >= kMostInFolder) {
    return concat(reason, "; not kept: ", folder, " has ", kMostInFolder, " files");
  }
  File file;
  file.note("call", call.verb);
  file.note("line", line_of(call));
  file.note("reason", reason);
  file.note("engine", ended.engine.name);
  for (const auto& [name, value] : call.options) file.note(concat("option.", name), value);
  if (const Status status = read_inputs(ended, &file); !status.ok()) {
    return concat(reason, "; not kept: ", status.message());
  }
  const std::string path = concat(folder, "/", kPrefix, getpid(), "-", number, ".safetensors");
  if (!file.write(path)) return concat(reason, "; not kept: cannot write ", path);
  return concat(reason, "; inputs kept: fa3 replay ", path);
}

}  // namespace fa3::api
