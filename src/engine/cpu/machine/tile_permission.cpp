// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/features.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fa3::cpu {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// In leaf 7 of CPUID, register EDX.
constexpr unsigned kAmxBf16 = 1u << 22;
constexpr unsigned kAmxTile = 1u << 24;

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
constexpr long kTileData = 18;               // the state's number, as in XCR0

}  // namespace

bool may_use_tiles() {
  constexpr unsigned kWanted = kAmxBf16 | kAmxTile;
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kWanted) != kWanted) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool may_use_tiles() {
  return false;
}

#endif

}  // namespace fa3::cpu
