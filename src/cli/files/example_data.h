// SPDX-License-Identifier: Apache-2.0
//
// Q, K and V of a trained transformer: examples/data of the sources, or what is installed beside
// the command. Next: npy_file.h.
#pragma once

#include <string>
#include <vector>

namespace fa3::cli {

// In the sources, or ../share/fa3/demo of the folder that the command lies in.
std::string data_folder();

// The layers of which there are files: three in the sources, the first where fa3 is installed.
std::vector<int> layers_in(const std::string& folder);

// tensor: "q", "k" or "v".
std::string layer_file(const std::string& folder, int layer, const char* tensor);

}  // namespace fa3::cli
