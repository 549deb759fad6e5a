// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/kernels/isa.h"

#include <cstdlib>

#include "engine/cpu/machine/features.h"
#include "process/first_use.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fa3::cpu {
namespace {

struct Candidate {
  const Kernels* kernels;
  bool supported;
  bool preferred;  // worth choosing unasked
};

#if defined(__x86_64__)

// Asked directly, because Clang 14's __builtin_cpu_supports does not know it.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

// vdpbf16ps does twice the work of an FMA. AMD (Zen 4, Zen 5) runs both at the same rate, Intel
// (Sapphire and Granite Rapids) the former at a quarter of the latter's: there widening bfloat16 to
// float is twice as fast.
bool fast_avx512_bf16() {
  return __builtin_cpu_is("amd");
}

#elif defined(__aarch64__)

bool has_neon_bf16() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

#endif

// Best first; the last one always runs.
struct Candidates {
  Candidate list[5] = {};
  int count = 0;

  Candidates() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    list[count++] = {&amx::kKernels, has_avx512_bf16() && may_use_tiles(), true};
    list[count++] = {&avx512_bf16::kKernels, has_avx512_bf16(), fast_avx512_bf16()};
    list[count++] = {&avx512::kKernels, has_avx512(), true};
    list[count++] = {&avx2::kKernels, has_avx2(), true};
#elif defined(__aarch64__)
    list[count++] = {&neon_bf16::kKernels, has_neon_bf16(), true};
    list[count++] = {&neon::kKernels, true, true};
#endif
    list[count++] = {&portable::kKernels, true, true};
  }
};

const Kernels* choose_kernels() {
  const char* asked = std::getenv("FA3_CPU_ISA");
  if (asked != nullptr) {
    if (const Kernels* found = find_kernels(asked)) return found;
  }
  for (const Candidate& candidate : Candidates().list) {
    if (candidate.supported && candidate.preferred) return candidate.kernels;
  }
  return &portable::kKernels;
}

}  // namespace

const Kernels* find_kernels(std::string_view name) {
  for (const Candidate& candidate : Candidates().list) {
    if (candidate.supported && name == candidate.kernels->name) return candidate.kernels;
  }
  return nullptr;
}

const Kernels& kernels() {
  static constinit FirstUse<const Kernels*> chosen;
  return *chosen.get(choose_kernels);
}

const char* isa_name() {
  return kernels().name;
}

}  // namespace fa3::cpu
