/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3.h is C: this file compiles as C99 and runs one forward through it. */
#include <fa3/fa3.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, fa3_last_error()); \
      return 1;                                                                     \
    }                                                                               \
  } while (0)

/* (1, rows, 1, dim), contiguous. */
static fa3_tensor matrix(float* data, int64_t rows, int64_t dim) {
  const fa3_tensor view = {
      data, FA3_FLOAT32, FA3_CPU, 0, 4, {1, rows, 1, dim}, {rows * dim, dim, dim, 1}};
  return view;
}

int main(void) {
  float q[2] = {1, -1};
  float k[3] = {0, 1, 2};
  float v[3] = {10, 20, 30};
  float o[2] = {-1, -1};
  float lse[2] = {-1, -1};
  const fa3_tensor lse_view = {lse, FA3_FLOAT32, FA3_CPU, 0, 3, {1, 1, 2}, {2, 2, 1}};
  fa3_forward_params params;
  size_t bytes = 0;
  void* workspace = NULL;
  double sum;

  fa3_forward_params_init(&params);
  CHECK(params.struct_size == sizeof(params));
  params.q = matrix(q, 2, 1);
  params.k = matrix(k, 3, 1);
  params.v = matrix(v, 3, 1);
  params.o = matrix(o, 2, 1);
  params.lse = lse_view;
  params.options.causal = 1; /* the first query sees two keys, the second three */
  CHECK(fa3_forward_workspace_size(&params, &bytes) == FA3_OK);
  workspace = malloc(bytes);
  CHECK(workspace != NULL);
  CHECK(fa3_forward(&params, workspace, bytes, NULL) == FA3_OK);
  free(workspace);

  sum = 1 + exp(1.0);
  CHECK(fabs((double)lse[0] - log(sum)) < 1e-5);
  CHECK(fabs((double)o[0] - (10 + 20 * exp(1.0)) / sum) < 1e-4);
  sum = 1 + exp(-1.0) + exp(-2.0);
  CHECK(fabs((double)lse[1] - log(sum)) < 1e-5);
  CHECK(fabs((double)o[1] - (10 + 20 * exp(-1.0) + 30 * exp(-2.0)) / sum) < 1e-4);
  CHECK(fa3_version() >= 100);
  return 0;
}
