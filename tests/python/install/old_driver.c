/* SPDX-License-Identifier: Apache-2.0
 * An NVIDIA driver as far as the CUDA runtime asks one for its version: OLD_DRIVER of the
 * environment, 1000 major + 10 minor. It has no GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kNoDevice = 100, kNotFound = 500 };

int cuInit(unsigned flags) {
  return flags == 0 ? kNoDevice : kNotFound;
}

int cuDriverGetVersion(int* version) {
  *version = atoi(getenv("OLD_DRIVER"));
  return kSuccess;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags,
                        int* status) {
  *function = 0;
  if (strcmp(name, "cuInit") == 0) *function = (void*)&cuInit;
  if (strcmp(name, "cuDriverGetVersion") == 0) *function = (void*)&cuDriverGetVersion;
  if (strncmp(name, "cuGetProcAddress", 16) == 0) *function = (void*)&cuGetProcAddress_v2;
  if (status != 0) *status = *function == 0;
  if (getenv("OLD_DRIVER_SHOWS")) fprintf(stderr, "%s %d %lu\n", name, version, flags);
  return *function == 0 ? kNotFound : kSuccess;
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
