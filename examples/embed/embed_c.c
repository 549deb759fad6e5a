/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention from C99: causal, 4 query heads that share 2 key/value heads. */
#include <fa3/fa3.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, SEQ = 300, HEADS = 4, KV_HEADS = 2, DIM = 64 };

/* (batch, seq, heads, dim), contiguous, in host memory. */
static fa3_tensor tensor(int64_t heads, float value) {
  const int64_t elements = BATCH * SEQ * heads * DIM;
  const fa3_tensor made = {
      malloc(elements * sizeof(float)),        FA3_FLOAT32, FA3_CPU, 0, 4, {BATCH, SEQ, heads, DIM},
      {SEQ * heads * DIM, heads * DIM, DIM, 1}};
  for (int64_t i = 0; i < elements; ++i) ((float*)made.data)[i] = value;
  return made;
}

int main(void) {
  fa3_forward_params params;
  fa3_forward_params_init(&params); /* the default of every field */
  params.q = tensor(HEADS, 1);
  params.k = tensor(KV_HEADS, 1);
  params.v = tensor(KV_HEADS, 2);
  params.o = tensor(HEADS, 0);
  params.options.causal = 1;

  size_t bytes = 0; /* the caller owns all memory, the workspace too */
  fa3_status status = fa3_forward_workspace_size(&params, &bytes);
  void* workspace = malloc(bytes);
  if (status == FA3_OK) status = fa3_forward(&params, workspace, bytes, NULL);
  if (status != FA3_OK) {
    fprintf(stderr, "fa3: %s\n", fa3_last_error());
    return 1;
  }
  printf("o[0] = %g, expected 2\n", ((float*)params.o.data)[0]); /* the mean of twos */
  return 0;
}
