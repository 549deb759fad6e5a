// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/jit/kernel_cache.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/disk_cache.h"

namespace fa3::cuda {
namespace {

// Everything that the code follows from, but for the compiler's version: another one's code is as
// good. It names the file on disk.
std::string key_of(const Program& program) {
  std::string key =
      concat("fa3 ", FA3_VERSION_MAJOR, ".", FA3_VERSION_MINOR, ".", FA3_VERSION_PATCH, " ",
             program.architecture, "\n", program.headers.hash, "\n");
  for (const std::string& option : program.options) key += option + "\n";
  return key + program.text;
}

Status load(const std::string& code, const void** kernel) {
  cudaLibrary_t library = nullptr;
  cudaError_t error =
      cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  cudaKernel_t found = nullptr;
  if (error == cudaSuccess) error = cudaLibraryEnumerateKernels(&found, 1, library);
  *kernel = found;
  return finish(error, "loading a kernel that was compiled at run time");
}

struct Known {
  std::shared_mutex mutex;
  // By ProgramKey::bytes(). A kernel is made by the thread that has its mutex.
  std::unordered_map<std::string, const void*> kernels;
  std::unordered_map<std::string, std::shared_ptr<std::mutex>> makers;
};

Known& known_kernels() {
  static Known& known = *new Known;  // outlives every caller
  return known;
}

}  // namespace

Status find_code(const Program& program, const char* nvrtc, std::string* code) {
  const DiskCache cache = DiskCache::of_user();
  const std::string key = key_of(program);
  if (cache.load(key, code)) return {};
  FA3_TRY(compile(program, nvrtc, code));
  cache.store(key, *code);
  return {};
}

namespace {

std::shared_ptr<std::mutex> maker_of(const ProgramKey& key) {
  Known& known = known_kernels();
  const std::lock_guard insertion(known.mutex);
  std::shared_ptr<std::mutex>& mutex = known.makers[key.bytes()];
  if (mutex == nullptr) mutex = std::make_shared<std::mutex>();
  return mutex;
}

}  // namespace

const void* known_kernel(const ProgramKey& key) {
  Known& known = known_kernels();
  const std::shared_lock lock(known.mutex);
  const auto found = known.kernels.find(key.bytes());
  return found == known.kernels.end() ? nullptr : found->second;
}

Status make_kernel(const ProgramKey& key, const Program& program, const char* nvrtc,
                   const void** kernel) {
  const std::shared_ptr<std::mutex> mutex = maker_of(key);
  const std::lock_guard lock(*mutex);
  *kernel = known_kernel(key);
  if (*kernel != nullptr) return {};
  std::string code;
  FA3_TRY(find_code(program, nvrtc, &code));
  FA3_TRY(load(code, kernel));
  Known& known = known_kernels();
  const std::lock_guard insertion(known.mutex);
  known.kernels.emplace(key.bytes(), *kernel);
  return {};
}

}  // namespace fa3::cuda
