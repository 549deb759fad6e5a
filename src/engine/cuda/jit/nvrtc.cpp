// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/jit/nvrtc.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "core/error.h"
#include "core/macros.h"

namespace fa3::cuda {
namespace {

// A driver of the 12 series, for which a library with the runtime of 12 is built, does not load
// what NVRTC 13 makes.
constexpr const char* kNvrtc = CUDA_VERSION >= 13000 ? "libnvrtc.so.13" : "libnvrtc.so.12";

// The part of nvrtc.h that is called, so that a build needs no NVRTC.
using Handle = void*;
struct Nvrtc {
  int (*create)(Handle*, const char* text, const char* name, int, const char* const*,
                const char* const*);
  int (*compile)(Handle, int, const char* const*);
  int (*destroy)(Handle*);
  int (*log_size)(Handle, size_t*);
  int (*log)(Handle, char*);
  int (*code_size)(Handle, size_t*);
  int (*code)(Handle, char*);
  const char* (*error)(int);
};
constexpr int kCompilation = 6;  // NVRTC_ERROR_COMPILATION

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool find_all(void* library, Nvrtc* found) {
  return find(library, "nvrtcCreateProgram", &found->create) &&
         find(library, "nvrtcCompileProgram", &found->compile) &&
         find(library, "nvrtcDestroyProgram", &found->destroy) &&
         find(library, "nvrtcGetProgramLogSize", &found->log_size) &&
         find(library, "nvrtcGetProgramLog", &found->log) &&
         find(library, "nvrtcGetCUBINSize", &found->code_size) &&
         find(library, "nvrtcGetCUBIN", &found->code) &&
         find(library, "nvrtcGetErrorString", &found->error);
}

void* open_library(const char* asked) {
  if (asked != nullptr) return dlopen(asked, RTLD_NOW | RTLD_LOCAL);
  if (const char* path = std::getenv("FA3_NVRTC")) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (const char* name :
       {kNvrtc, "libnvrtc.so", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

// The first library that is found stays.
Status find_nvrtc(const char* what, const char* asked, Nvrtc* nvrtc) {
  static std::mutex mutex;
  static Nvrtc known{};
  const std::lock_guard lock(mutex);
  if (known.create == nullptr) {
    void* library = open_library(asked);
    if (library == nullptr) {
      return unsupported(
          "a ", what, " needs libnvrtc, which was not found",
          asked != nullptr ? concat(" at ", asked) : std::string(),
          "; it comes with the CUDA toolkit and with the package nvidia-cuda-nvrtc; FA3_NVRTC is "
          "its path");
    }
    if (!find_all(library, &known)) {
      known = {};
      return unsupported("the libnvrtc that was found lacks functions; expected CUDA 12 or later");
    }
  }
  *nvrtc = known;
  return {};
}

std::string log_of(const Nvrtc& nvrtc, Handle handle) {
  size_t size = 0;
  if (nvrtc.log_size(handle, &size) != 0 || size < 2) return "";
  std::string log(size, '\0');
  nvrtc.log(handle, log.data());
  log.resize(size - 1);
  constexpr size_t kMost = 2000;
  return log.size() <= kMost ? log : log.substr(0, kMost) + " ...";
}

Status compile(const Nvrtc& nvrtc, Handle handle, const Program& program, std::string* code) {
  std::vector<std::string> options = program.options;
  options.push_back("--gpu-architecture=" + program.architecture);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  const int error = nvrtc.compile(handle, int(words.size()), words.data());
  if (error == kCompilation) return invalid(program.what, ": ", log_of(nvrtc, handle));
  size_t size = 0;
  if (error != 0 || nvrtc.code_size(handle, &size) != 0) {
    return unsupported(program.what, ": NVRTC: ", nvrtc.error(error), " ", log_of(nvrtc, handle));
  }
  code->resize(size);
  return nvrtc.code(handle, code->data()) == 0 ? Status{}
                                               : unsupported(program.what, ": NVRTC has no code");
}

}  // namespace

Status compile(const Program& program, const char* library, std::string* code) {
  Nvrtc nvrtc{};
  FA3_TRY(find_nvrtc(program.what, library, &nvrtc));
  const EmbeddedHeaders& headers = program.headers;
  Handle handle = nullptr;
  const int error =
      nvrtc.create(&handle, program.text.c_str(), "score_function.cu", int(headers.names.size()),
                   headers.texts.data(), headers.names.data());
  if (error != 0) return unsupported(program.what, ": NVRTC: ", nvrtc.error(error));
  Status status = compile(nvrtc, handle, program, code);
  nvrtc.destroy(&handle);
  return status;
}

}  // namespace fa3::cuda
