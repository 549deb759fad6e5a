// SPDX-License-Identifier: Apache-2.0
//
// NumPy's .npy format, versions 1 to 3, as far as attention needs it: C order, little endian,
// floats. Parses memory that nobody vouches for and never reads past it, so that a fuzzer can drive
// it. Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Next: npy_file.h.
#pragma once

#include <fa3/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fa3::cli {

enum class NpyType {
  float32,   // '<f4'
  float16,   // '<f2'
  float64,   // '<f8'
  bfloat16,  // '<V2': what numpy.save writes for ml_dtypes.bfloat16 (npy has no name for it)
  uint16,    // '<u2': the bits of bfloat16, if the user says so
};

int64_t size_of(NpyType type);
const char* descr_of(NpyType type);

// What a file holds: exactly the bytes of `shape`, from byte `data_begin` to its end.
struct NpyArray {
  NpyType type = NpyType::float32;
  std::vector<int64_t> shape;
  uint64_t data_begin = 0;
};

// The first bytes of a file, as many as parse_npy() may ask for. Files may be large, and foreign.
inline constexpr size_t kNpyBeginning = size_t{1} << 17;

// OK, or INVALID_ARGUMENT with one sentence; *array is then unchanged. `beginning`: the first
// kNpyBeginning bytes of a file of `file_bytes`, or all of them.
Status parse_npy(std::span<const std::byte> beginning, uint64_t file_bytes, NpyArray* array);

// The bytes before the data of a version 1 file; a multiple of 64, as NumPy aligns it.
std::string npy_header(NpyType type, std::span<const int64_t> shape);

}  // namespace fa3::cli
