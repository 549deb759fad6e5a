// SPDX-License-Identifier: Apache-2.0
//
// NumPy's .npy format, versions 1 to 3, as far as attention needs it: C order, little endian, floats.
// Parses memory that nobody vouches for and never reads past it, so that a fuzzer can drive it.
// Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Next: npy_file.h.
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

// What a file holds; `data` points into the parsed memory and has exactly the bytes of `shape`.
struct NpyView {
  NpyType type = NpyType::float32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// OK, or INVALID_ARGUMENT with one sentence; *view is then unchanged.
Status parse_npy(std::span<const std::byte> file, NpyView* view);

// The bytes before the data of a version 1 file; a multiple of 64, as NumPy aligns it.
std::string npy_header(NpyType type, std::span<const int64_t> shape);

}  // namespace fa3::cli
