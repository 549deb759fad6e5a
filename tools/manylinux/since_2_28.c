/* SPDX-License-Identifier: Apache-2.0
 *
 * What a static libstdc++ and the start of a program take from a glibc later than 2.28, made of
 * what 2.28 has. Linked into the libraries and the command of a wheel alone (glibc_stubs.py). */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

struct stat;

/* "The process may have several threads": true of every process, if not the fastest answer. */
char __libc_single_threaded = 0;

uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) abort();
  return value;
}

/* Until 2.33 the C library's headers turned these into calls with the version of struct stat. */
#if defined(__x86_64__)
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int version, const char* path, struct stat* to);
int __lxstat(int version, const char* path, struct stat* to);
int __fxstat(int version, int file, struct stat* to);

int stat(const char* path, struct stat* to) {
  return __xstat(kStatVersion, path, to);
}
int lstat(const char* path, struct stat* to) {
  return __lxstat(kStatVersion, path, to);
}
int fstat(int file, struct stat* to) {
  return __fxstat(kStatVersion, file, to);
}
int fstat64(int file, struct stat* to) {
  return __fxstat(kStatVersion, file, to);
}
