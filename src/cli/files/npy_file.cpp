// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/exit_code.h"
#include "cli/files/npy.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors and files share their bytes");

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw CommandError(kExitBadInput, path + ": " + what);
}

// A file that is read from its beginning, in pieces.
class Input {
 public:
  explicit Input(const std::string& path) : path_(path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) fail(path, "expected a file, got a directory");
    file_.open(path, std::ios::binary | std::ios::ate);
    if (!file_) fail(path, concat("cannot be read: ", std::strerror(errno)));
    size_ = file_.tellg();
    if (size_ < 0) fail(path, "expected a regular file, got something without a size");
  }

  uint64_t size() const { return static_cast<uint64_t>(size_); }
  void read(uint64_t from, std::byte* to, uint64_t bytes) {
    file_.seekg(static_cast<std::streamoff>(from));
    file_.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (!file_) fail(path_, "reading it failed");
  }

 private:
  std::string path_;
  std::ifstream file_;
  std::streamoff size_ = 0;
};

// The type that the tensor in memory has before any conversion.
fa3_dtype dtype_in_file(const std::string& path, NpyType type, std::optional<fa3_dtype> wanted) {
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

HostTensor read_data(Input* input, const NpyArray& array, fa3_dtype dtype) {
  HostTensor tensor(dtype, array.shape);
  if (array.type != NpyType::float64) {
    input->read(array.data_begin, tensor.data(), static_cast<uint64_t>(tensor.bytes()));
    return tensor;
  }
  std::vector<double> piece(1 << 16);
  for (int64_t i = 0; i < tensor.elements();) {
    const int64_t count = std::min<int64_t>(std::ssize(piece), tensor.elements() - i);
    constexpr uint64_t kItem = sizeof(double);
    input->read(array.data_begin + static_cast<uint64_t>(i) * kItem,
                reinterpret_cast<std::byte*>(piece.data()), static_cast<uint64_t>(count) * kItem);
    for (int64_t j = 0; j < count; ++j, ++i) {
      set_element(tensor.data(), dtype, i, static_cast<float>(piece[static_cast<size_t>(j)]));
    }
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
  Input input(path);
  std::vector<std::byte> beginning(std::min<uint64_t>(input.size(), kNpyBeginning));
  input.read(0, beginning.data(), beginning.size());
  NpyArray array;
  require(parse_npy(beginning, input.size(), &array), path);
  if (array.shape.size() != static_cast<size_t>(rank)) {
    fail(path, concat("expected ", rank, " dimensions, got shape ", shape_text(array.shape),
                      rank == 4 ? "; use x[None] to add a batch of 1" : ""));
  }
  HostTensor tensor = read_data(&input, array, dtype_in_file(path, array.type, dtype));
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
    std::error_code error;  // half a file is none
    if (std::filesystem::is_regular_file(path, error)) std::filesystem::remove(path, error);
    throw CommandError(kExitFailed, concat(path, ": writing ", tensor.bytes(),
                                           " bytes failed; is there room on the disk?"));
  }
}

}  // namespace fa3::cli
