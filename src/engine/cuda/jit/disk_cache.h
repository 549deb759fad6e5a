// SPDX-License-Identifier: Apache-2.0
// Machine code on disk, for the next process. The folder is FA3_CACHE_DIR of the environment, else
// fa3 in XDG_CACHE_HOME or ~/.cache; an empty FA3_CACHE_DIR turns the cache off. The folder is the
// user's alone (0700): what others own, or may write, is neither read nor written. A file is
// written under another name and renamed, so that no process sees half of it. It holds its whole
// key, and a checksum: a file that is not as it was written counts as absent. Beyond kMostBytes the
// oldest of the cache's own files go; others in the folder are left alone.
#pragma once

#include <cstdint>
#include <string>

namespace fa3::cuda {

class DiskCache {
 public:
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

  explicit DiskCache(std::string folder, int64_t most_bytes = kMostBytes)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}
  static DiskCache of_user();

  // Whether the code of this key was there.
  bool load(const std::string& key, std::string* code) const;
  // Failures are no news: the next process compiles again.
  void store(const std::string& key, const std::string& code) const;

 private:
  bool is_private_folder(bool make) const;
  std::string path_of(const std::string& key) const;
  void shrink() const;

  std::string folder_;  // empty: off
  int64_t most_bytes_;
};

}  // namespace fa3::cuda
