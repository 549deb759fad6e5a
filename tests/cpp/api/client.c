/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that uses every part of every struct of fa3.h 0.1, on the stack between canaries. */
#include FA3_HEADER
#include "client.h"

#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                     \
  do {                                                                \
    if ((call) != FA3_OK) return #call " failed: see fa3_last_error"; \
  } while (0)

enum { kCanaries = 512 };

typedef struct Structs {
  fa3_forward_params forward;
  char after_forward[kCanaries];
  fa3_backward_params backward;
  char after_backward[kCanaries];
  fa3_merge_params merge;
  char after_merge[kCanaries];
} Structs;

static int is_canary(const char* bytes) {
  for (int i = 0; i < kCanaries; ++i) {
    if (bytes[i] != 0x5a) return 0;
  }
  return 1;
}

static fa3_tensor view(void* data, int rank, const int64_t* shape, int32_t dtype) {
  fa3_tensor tensor = {data, dtype, FA3_CPU, 0, rank, {0}, {0}};
  int64_t step = 1;
  for (int dim = rank - 1; dim >= 0; --dim) {
    tensor.shape[dim] = shape[dim];
    tensor.stride[dim] = step;
    step *= shape[dim];
  }
  return tensor;
}

static fa3_tensor rows(float* data) {
  const int64_t shape[] = {kRows, kHeads, kDim};
  return view(data, 3, shape, FA3_FLOAT32);
}

static fa3_tensor row_scalars(float* data) {
  const int64_t shape[] = {kHeads, kRows};
  return view(data, 2, shape, FA3_FLOAT32);
}

static fa3_tensor vector(void* data, int64_t count, int32_t dtype) {
  return view(data, 1, &count, dtype);
}

static void fill(float* data, unsigned seed) {
  for (int i = 0; i < kElements; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

static void set_options(fa3_options* options, int32_t* starts, int32_t* used) {
  options->scale = 0.7f;
  options->softcap = 3.0f;
  options->window_left = 3;
  options->window_right = 2;
  options->deterministic = 1;
  options->num_threads = 1;
  options->cu_seqlens_q = options->cu_seqlens_k = vector(starts, 3, FA3_INT32);
  options->seqused_q = options->seqused_k = vector(used, 2, FA3_INT32);
  options->max_seqlen_q = options->max_seqlen_k = kRows;
}

const char* FA3_CLIENT(ClientResults* r) {
  static float q[kElements], k[kElements], v[kElements], d_o[kElements];
  float sink[kHeads] = {0.5f, -0.25f};
  float o_partial[2 * kElements], lse_partial[2 * kRows * kHeads];
  int32_t starts[] = {0, 5, kRows}, used[] = {4, 4};
  const int64_t o_shape[] = {2, 1, kRows, kHeads, kDim}, lse_shape[] = {2, 1, kHeads, kRows};
  Structs s;
  void* workspace;
  size_t forward_bytes = 0, backward_bytes = 0, text_bytes = 0;

  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
  fill(d_o, 4);
  memset(&s, 0x5a, sizeof(s));
  fa3_forward_params_init(&s.forward);
  fa3_backward_params_init(&s.backward);
  fa3_merge_params_init(&s.merge);

  set_options(&s.forward.options, starts, used);
  s.forward.q = rows(q);
  s.forward.k = rows(k);
  s.forward.v = rows(v);
  s.forward.o = rows(r->o);
  s.forward.lse = row_scalars(r->lse);
  s.forward.sink = vector(sink, kHeads, FA3_FLOAT32);
  set_options(&s.backward.options, starts, used);
  s.backward.q = rows(q);
  s.backward.k = rows(k);
  s.backward.v = rows(v);
  s.backward.o = rows(r->o);
  s.backward.lse = row_scalars(r->lse);
  s.backward.sink = vector(sink, kHeads, FA3_FLOAT32);
  s.backward.d_o = rows(d_o);
  s.backward.dq = rows(r->dq);
  s.backward.dk = rows(r->dk);
  s.backward.dv = rows(r->dv);
  s.backward.dsink = vector(r->dsink, kHeads, FA3_FLOAT32);

  TRY(fa3_forward_supported(&s.forward));
  TRY(fa3_backward_supported(&s.backward));
  TRY(fa3_forward_workspace_size(&s.forward, &forward_bytes));
  TRY(fa3_backward_workspace_size(&s.backward, &backward_bytes));
  TRY(fa3_forward_plan_text(&s.forward, r->forward_plan, sizeof(r->forward_plan), &text_bytes));
  TRY(fa3_backward_plan_text(&s.backward, r->backward_plan, sizeof(r->backward_plan), NULL));
  workspace = malloc(forward_bytes + backward_bytes);
  TRY(fa3_forward(&s.forward, workspace, forward_bytes, NULL));
  TRY(fa3_backward(&s.backward, workspace, backward_bytes, NULL));
  free(workspace);

  for (int i = 0; i < 2; ++i) {
    memcpy(o_partial + i * kElements, i == 0 ? r->o : v, sizeof(r->o));
    for (int j = 0; j < kRows * kHeads; ++j) lse_partial[i * kRows * kHeads + j] = (float)(i - j);
  }
  s.merge.o_partial = view(o_partial, 5, o_shape, FA3_FLOAT32);
  s.merge.lse_partial = view(lse_partial, 4, lse_shape, FA3_FLOAT32);
  s.merge.o = view(r->merged_o, 4, o_shape + 1, FA3_FLOAT32);
  s.merge.lse = view(r->merged_lse, 3, lse_shape + 1, FA3_FLOAT32);
  s.merge.num_threads = 1;
  TRY(fa3_merge(&s.merge, NULL));

  s.forward.num_splits = -7; /* the last field but one: it must arrive to be refused */
  if (fa3_forward_supported(&s.forward) != FA3_INVALID_ARGUMENT) return "num_splits did not arrive";
  s.merge.num_threads = -7;
  if (fa3_merge(&s.merge, NULL) != FA3_INVALID_ARGUMENT) return "num_threads did not arrive";

  if (!is_canary(s.after_forward)) return "memory behind fa3_forward_params was written";
  if (!is_canary(s.after_backward)) return "memory behind fa3_backward_params was written";
  if (!is_canary(s.after_merge)) return "memory behind fa3_merge_params was written";
  return NULL;
}
