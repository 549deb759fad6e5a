// SPDX-License-Identifier: Apache-2.0
//
// The .npy reader: what it accepts must be an array that the file holds, and must survive being
// written.
#include <cstdlib>
#include <cstring>

#include "cli/files/npy.h"

namespace fa3::cli {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read(std::span<const std::byte> beginning, uint64_t file_bytes) {
  NpyArray array;
  const Status status = parse_npy(beginning, file_bytes, &array);
  if (!status.ok()) {
    check(!status.message().empty() && array.shape.empty());
    return;
  }
  uint64_t bytes = static_cast<uint64_t>(size_of(array.type));
  for (const int64_t extent : array.shape) {
    check(extent >= 0);
    bytes *= static_cast<uint64_t>(extent);
  }
  check(array.data_begin + bytes == file_bytes);
  const std::string header = npy_header(array.type, array.shape);
  NpyArray again;
  check(parse_npy(std::as_bytes(std::span(header)), header.size() + bytes, &again).ok());
  check(again.shape == array.shape && again.type == array.type);
}

}  // namespace
}  // namespace fa3::cli

// The first 8 bytes say how long the file is, beyond the bytes that are read of it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span all(reinterpret_cast<const std::byte*>(data), size);
  fa3::cli::read(all, size);
  uint64_t beyond = 0;
  if (size < sizeof(beyond)) return 0;
  std::memcpy(&beyond, data, sizeof(beyond));
  const std::span rest = all.subspan(sizeof(beyond));
  fa3::cli::read(rest, rest.size() + beyond % (uint64_t{1} << 63));
  return 0;
}
