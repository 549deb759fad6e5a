/* SPDX-License-Identifier: Apache-2.0
 *
 * client.c compiled with today's fa3.h and with that of 0.1: what each of them computed. */
#ifndef FA3_TESTS_CLIENT_H
#define FA3_TESTS_CLIENT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kRows = 9, kHeads = 2, kDim = 4, kElements = kRows * kHeads * kDim };

typedef struct ClientResults {
  float o[kElements], lse[kRows * kHeads];
  float dq[kElements], dk[kElements], dv[kElements], dsink[kHeads];
  float merged_o[kElements], merged_lse[kRows * kHeads];
  char forward_plan[1024], backward_plan[1024];
} ClientResults;

/* NULL, or what went wrong. */
const char* run_client(ClientResults* results);
const char* run_client_of_0_1(ClientResults* results);

#ifdef __cplusplus
}
#endif

#endif
