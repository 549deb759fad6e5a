// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/jit/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace fa3::cuda {
namespace {

namespace files = std::filesystem;

constexpr char kMagic[8] = {'f', 'a', '3', 'k', 'e', 'r', 'n', '1'};

struct Head {
  char magic[8];
  uint64_t key_bytes;
  uint64_t code_bytes;
  uint64_t checksum;  // of key and code
};

// FNV-1a, with its bits mixed at the end.
uint64_t hash_of(const std::string& text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

uint64_t checksum_of(const std::string& key, const std::string& code) {
  return hash_of(code, hash_of(key, 3));
}

// This user's, and nobody else may write it.
bool is_private(const struct stat& found) {
  return found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  bool is_of_user() const {
    struct stat found {};
    return fstat(descriptor_, &found) == 0 && S_ISREG(found.st_mode) && is_private(found);
  }
  bool read(void* to, size_t bytes) const {
    for (auto* at = static_cast<char*>(to); bytes > 0;) {
      const ssize_t got = ::read(descriptor_, at, bytes);
      if (got <= 0) return false;
      at += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  bool write(const void* from, size_t bytes) const {
    for (auto* at = static_cast<const char*>(from); bytes > 0;) {
      const ssize_t put = ::write(descriptor_, at, bytes);
      if (put <= 0) return false;
      at += put;
      bytes -= static_cast<size_t>(put);
    }
    return true;
  }

 private:
  int descriptor_;
};

constexpr std::string_view kSuffix = ".cubin", kWriting = "writing-";
constexpr size_t kNameDigits = 32, kWritingDigits = 6;

// Whether a file of this name is the cache's: the folder may hold others.
bool is_own_name(const std::string& name) {
  if (name.size() == kWriting.size() + kWritingDigits && name.starts_with(kWriting)) return true;
  return name.size() == kNameDigits + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == kNameDigits;
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

DiskCache DiskCache::of_user() {
  if (std::getenv("FA3_CACHE_DIR") != nullptr) return DiskCache(from_environment("FA3_CACHE_DIR"));
  const std::string caches = from_environment("XDG_CACHE_HOME"), home = from_environment("HOME");
  if (!caches.empty()) return DiskCache(caches + "/fa3");
  return DiskCache(home.empty() ? "" : home + "/.cache/fa3");
}

bool DiskCache::is_private_folder(bool make) const {
  if (folder_.empty()) return false;
  if (make) {
    std::error_code ignored;
    files::create_directories(files::path(folder_).parent_path(), ignored);
    mkdir(folder_.c_str(), 0700);
  }
  struct stat found {};
  return lstat(folder_.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && is_private(found);
}

std::string DiskCache::path_of(const std::string& key) const {
  std::string name(kNameDigits, '0');
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int half = 0; half < 2; ++half) {
    uint64_t hash = hash_of(key, uint64_t(half) + 1);
    for (int i = 0; i < 16; ++i, hash >>= 4) name[size_t(half * 16 + i)] = kDigits[hash & 15];
  }
  return folder_ + "/" + name + std::string(kSuffix);
}

bool DiskCache::load(const std::string& key, std::string* code) const {
  if (!is_private_folder(false)) return false;
  // A FIFO of that name would be waited for.
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const File file(open(path_of(key).c_str(), flags));
  Head head{};
  if (!file.is_open() || !file.is_of_user() || !file.read(&head, sizeof(head))) return false;
  const bool is_whole = std::memcmp(head.magic, kMagic, sizeof(kMagic)) == 0 &&
                        head.key_bytes == key.size() &&
                        head.code_bytes <= static_cast<uint64_t>(most_bytes_);
  if (!is_whole) return false;
  std::string stored_key(key.size(), '\0');
  std::string stored(head.code_bytes, '\0');
  if (!file.read(stored_key.data(), stored_key.size())) return false;
  if (!file.read(stored.data(), stored.size())) return false;
  if (stored_key != key || checksum_of(key, stored) != head.checksum) return false;
  *code = std::move(stored);
  return true;
}

void DiskCache::store(const std::string& key, const std::string& code) const {
  if (!is_private_folder(true)) return;
  const std::string path = path_of(key);
  std::string written = folder_ + "/" + std::string(kWriting) + "XXXXXX";
  bool done = false;
  {
    const File file(mkostemp(written.data(), O_CLOEXEC));  // 0600
    if (!file.is_open()) return;
    Head head{{}, key.size(), code.size(), checksum_of(key, code)};
    std::memcpy(head.magic, kMagic, sizeof(kMagic));
    done = file.write(&head, sizeof(head)) && file.write(key.data(), key.size()) &&
           file.write(code.data(), code.size());
  }
  rmdir(path.c_str());  // an empty folder of that name could not be replaced
  if (!done || rename(written.c_str(), path.c_str()) != 0) unlink(written.c_str());
  shrink();
}

void DiskCache::shrink() const {
  struct Found {
    files::file_time_type time;
    int64_t bytes;
    files::path path;
  };
  std::vector<Found> found;
  std::error_code error;
  int64_t bytes = 0;
  for (files::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    if (!is_own_name(at->path().filename())) continue;
    std::error_code gone;  // by another process
    const auto size = at->file_size(gone);
    const auto time = at->last_write_time(gone);
    if (gone) continue;
    found.push_back({time, static_cast<int64_t>(size), at->path()});
    bytes += found.back().bytes;
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.time < b.time; });
  for (const Found& file : found) {
    if (bytes <= most_bytes_) return;
    files::remove(file.path, error);
    bytes -= file.bytes;
  }
}

}  // namespace fa3::cuda
