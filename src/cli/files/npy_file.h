// SPDX-License-Identifier: Apache-2.0
//
// .npy files as tensors: reads, converts, writes. Every error names the file.
#pragma once

#include <optional>
#include <string>

#include "cli/call/host_tensor.h"

namespace fa3::cli {

// The array in `path`, which must have `rank` dimensions. Its own dtype is kept ('<f8' becomes
// fp32) unless `dtype` asks for a conversion; '<u2' is taken as the bits of bfloat16 if `dtype` is
// that.
HostTensor read_npy(const std::string& path, int rank, std::optional<fa3_dtype> dtype = {});

// bf16 is written as '<V2', which numpy loads as V2: x.view(ml_dtypes.bfloat16).
void write_npy(const std::string& path, const HostTensor& tensor);

}  // namespace fa3::cli
