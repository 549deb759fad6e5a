// SPDX-License-Identifier: Apache-2.0
// Machine code on disk: once for all processes of a user, and nobody else's.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/cuda/jit/disk_cache.h"
#include "engine/cuda/jit/fixture.h"

namespace fa3 {
namespace {

namespace files = std::filesystem;

using DiskCache = CacheFolder;

TEST_F(DiskCache, GivesBackWhatWasStoredUnderTheKeyAlone) {
  const cuda::DiskCache cache(folder);
  std::string code;
  EXPECT_FALSE(cache.load("a", &code));
  cache.store("a", "first");
  cache.store("b", std::string("sec\0nd", 6));
  ASSERT_TRUE(cache.load("a", &code));
  EXPECT_EQ(code, "first");
  ASSERT_TRUE(cache.load("b", &code));
  EXPECT_EQ(code.size(), 6u);
  EXPECT_FALSE(cache.load("c", &code));
  struct stat found {};
  ASSERT_EQ(stat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST_F(DiskCache, TakesNoFileThatIsNotAsItWasWritten) {
  const cuda::DiskCache cache(folder);
  cache.store("key", std::string(1000, 'x'));
  const files::path path = only_file();
  const auto size = int(files::file_size(path));
  std::string code;
  for (int at = 0; at < size; at += 37) {
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(at);
      file.put('!');
    }
    EXPECT_FALSE(cache.load("key", &code)) << at;
    cache.store("key", std::string(1000, 'x'));
    EXPECT_TRUE(cache.load("key", &code));
  }
  for (int bytes = 0; bytes < size; bytes += 61) {
    files::resize_file(path, uintmax_t(bytes));
    EXPECT_FALSE(cache.load("key", &code)) << bytes;
    cache.store("key", std::string(1000, 'x'));
  }
}

TEST_F(DiskCache, TrustsNothingThatOthersMayWrite) {
  const cuda::DiskCache cache(folder);
  std::string code;
  cache.store("key", "code");
  chmod(only_file().c_str(), 0622);
  EXPECT_FALSE(cache.load("key", &code));
  chmod(only_file().c_str(), 0600);
  EXPECT_TRUE(cache.load("key", &code));
  chmod(folder.c_str(), 0777);
  EXPECT_FALSE(cache.load("key", &code));
  const int before = count();
  cache.store("other", "code");
  EXPECT_EQ(count(), before);
  chmod(folder.c_str(), 0700);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(only_file().c_str(), 12345, 12345), 0);
    EXPECT_FALSE(cache.load("key", &code));
  }
  const files::path path = only_file(), aside = path.string() + ".aside";
  files::rename(path, aside);
  files::create_symlink(aside, path);
  EXPECT_FALSE(cache.load("key", &code));
}

TEST_F(DiskCache, KeepsToItsSize) {
  const cuda::DiskCache cache(folder, 10000);
  for (int i = 0; i < 20; ++i) cache.store(std::to_string(i), std::string(1000, 'x'));
  EXPECT_LE(count(), 10);
  EXPECT_GE(count(), 8);
}

TEST_F(DiskCache, RemovesItsOwnFilesAlone) {
  files::create_directories(folder);
  files::permissions(folder, files::perms::owner_all);
  const std::string digits(32, 'a');
  std::vector<files::path> others;
  for (const char* name : {"thesis.tex", "film.mkv", "writing-notes.txt", "model.cubin"}) {
    others.push_back(files::path(folder) / name);
  }
  others.push_back(folder + "/" + digits + ".cubin.bak");
  others.push_back(folder + "/x" + digits + ".cubin");
  for (const files::path& other : others) {
    std::ofstream(other) << std::string(20000, 'x');
    files::last_write_time(other, files::file_time_type::clock::now() - std::chrono::hours(9000));
  }
  const cuda::DiskCache cache(folder, 10000);
  for (int i = 0; i < 20; ++i) cache.store(std::to_string(i), std::string(1000, 'x'));
  for (const files::path& other : others) EXPECT_TRUE(files::exists(other)) << other;
  const int own = count() - static_cast<int>(others.size());
  EXPECT_LE(own, 10);
  EXPECT_GE(own, 8);
}

TEST_F(DiskCache, IsNotHeldUpByWhatElseHasAnEntrysName) {
  const cuda::DiskCache cache(folder);
  cache.store("key", "code");
  const files::path path = only_file();
  std::string code;
  files::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  alarm(20);  // a test that waits for a writer fails
  EXPECT_FALSE(cache.load("key", &code));
  alarm(0);
  cache.store("key", "code");
  EXPECT_TRUE(cache.load("key", &code));
  files::remove(path);
  files::create_directory(path);
  EXPECT_FALSE(cache.load("key", &code));
  cache.store("key", "code");
  EXPECT_TRUE(cache.load("key", &code));
}

TEST_F(DiskCache, ManyProcessesWriteOneKey) {
  const std::string right(200000, 'y');
  for (int child = 0; child < 8; ++child) {
    if (fork() != 0) continue;
    const cuda::DiskCache cache(folder);
    bool all_right = true;
    for (int i = 0; i < 30; ++i) {
      std::string code;
      cache.store("key", right);
      all_right = all_right && (!cache.load("key", &code) || code == right);
    }
    _exit(all_right ? 0 : 1);
  }
  for (int child = 0, status = 0; child < 8; ++child) {
    wait(&status);
    EXPECT_EQ(status, 0);
  }
  std::string code;
  EXPECT_TRUE(cuda::DiskCache(folder).load("key", &code));
  EXPECT_EQ(count(), 1);
}

TEST_F(DiskCache, IsOffWithoutAFolder) {
  const cuda::DiskCache cache("");
  std::string code;
  cache.store("key", "code");
  EXPECT_FALSE(cache.load("key", &code));
}

}  // namespace
}  // namespace fa3
