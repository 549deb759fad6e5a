// SPDX-License-Identifier: Apache-2.0
#include "cli/files/example_data.h"

#include <fmt/format.h>

#include <filesystem>

namespace fa3::cli {

std::string data_folder() {
  const std::string in_sources = "examples/data";
  if (std::filesystem::exists(in_sources)) return in_sources;
  std::error_code unknown;
  const auto command = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const auto installed = command.parent_path().parent_path() / "share" / "fa3" / "demo";
  return std::filesystem::exists(installed) ? installed.string() : in_sources;
}

std::vector<int> layers_in(const std::string& folder) {
  std::vector<int> found;
  for (int layer : {0, 2, 5}) {
    if (std::filesystem::exists(layer_file(folder, layer, "q"))) found.push_back(layer);
  }
  return found;
}

std::string layer_file(const std::string& folder, int layer, const char* tensor) {
  return fmt::format("{}/minilm_layer{}_{}.npy", folder, layer, tensor);
}

}  // namespace fa3::cli
