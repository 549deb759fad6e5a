// SPDX-License-Identifier: Apache-2.0
#include "cli/npy_file.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/exit_code.h"
#include "cli/npy.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors and files share their bytes");

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw CommandError(kExitBadInput, path + ": " + what);
}

std::vector<std::byte> read_bytes(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail(path, "expected a file, got a directory");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail(path, concat("cannot be read: ", std::strerror(errno)));
  const std::streamoff size = file.tellg();
  if (size < 0) fail(path, "expected a regular file, got something without a size");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), size)) fail(path, "reading it failed");
  return bytes;
}

// The type that the tensor in memory has before any conversion.
fa3_dtype dtype_of(const std::string& path, NpyType type, std::optional<fa3_dtype> wanted) {
  switch (type) {
    case NpyType::float16:
      return FA3_FLOAT16;
    case NpyType::bfloat16:
      return FA3_BFLOAT16;
    case NpyType::uint16:
      if (wanted == FA3_BFLOAT16) return FA3_BFLOAT16;
      fail(path, "dtype: got '<u2'; if these are the bits of bfloat16, pass --dtype bf16");
    case NpyType::float32:
    case NpyType::float64:
      break;
  }
  return FA3_FLOAT32;
}

HostTensor tensor_of(const NpyView& view, fa3_dtype dtype) {
  HostTensor tensor(dtype, view.shape);
  if (view.type != NpyType::float64) {
    if (!view.data.empty()) std::memcpy(tensor.data(), view.data.data(), view.data.size());
    return tensor;
  }
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    double value;
    std::memcpy(&value, view.data.data() + i * int64_t{sizeof(double)}, sizeof(double));
    set_element(tensor.data(), dtype, i, static_cast<float>(value));
  }
  return tensor;
}

NpyType npy_type_of(fa3_dtype dtype) {
  return dtype == FA3_FLOAT16    ? NpyType::float16
         : dtype == FA3_BFLOAT16 ? NpyType::bfloat16
                                 : NpyType::float32;
}

}  // namespace

HostTensor read_npy(const std::string& path, int rank, std::optional<fa3_dtype> dtype) {
  const std::vector<std::byte> bytes = read_bytes(path);
  NpyView view;
  require(parse_npy(bytes, &view), path);
  if (view.shape.size() != static_cast<size_t>(rank)) {
    fail(path, concat("expected ", rank, " dimensions, got shape ", shape_text(view.shape),
                      rank == 4 ? "; use x[None] to add a batch of 1" : ""));
  }
  HostTensor tensor = tensor_of(view, dtype_of(path, view.type, dtype));
  if (!dtype || *dtype == tensor.dtype()) return tensor;
  return tensor.converted(*dtype);
}

void write_npy(const std::string& path, const HostTensor& tensor) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) fail(path, concat("cannot be written: ", std::strerror(errno)));
  const std::string header = npy_header(npy_type_of(tensor.dtype()), tensor.shape());
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(tensor.data()), tensor.bytes());
  file.close();
  if (!file) {
    throw CommandError(kExitFailed, concat(path, ": writing ", tensor.bytes(),
                                           " bytes failed; is there room on the disk?"));
  }
}

}  // namespace fa3::cli
