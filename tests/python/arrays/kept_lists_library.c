/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in front of the library (LD_PRELOAD) and says what it is asked for: calls on a GPU without
 * one. Lists are numbered as they are made; a call says whose it was given. */
#include <fa3/fa3.h>

#include <stdio.h>
#include <unistd.h>

static int g_made = 0;

static void say(const char* what, const fa3_block_lists* lists) {
  char line[80];
  const int length =
      snprintf(line, sizeof line, "%s %d\n", what, lists ? (int)lists->made_for[1] : 0);
  if (write(1, line, (size_t)length) != length) _exit(1);
}

/* A call with a softcap makes none; sm_margin is their size in MiB. */
static fa3_status size_of(const fa3_options* options, size_t* bytes) {
  say("size", NULL);
  *bytes = options->softcap != 0 ? 0 : options->sm_margin ? (size_t)options->sm_margin << 20 : 1000;
  return FA3_OK;
}
static fa3_status make(void* memory, fa3_block_lists* lists) {
  lists->data = memory;
  lists->made_for[1] = ++g_made;
  say("made", lists);
  return FA3_OK;
}

fa3_status fa3_forward_block_lists_size(const fa3_forward_params* params, size_t* bytes) {
  return size_of(&params->options, bytes);
}
fa3_status fa3_backward_block_lists_size(const fa3_backward_params* params, size_t* bytes) {
  return size_of(&params->options, bytes);
}
fa3_status fa3_forward_make_block_lists(const fa3_forward_params* params, void* memory,
                                        size_t bytes, void* stream, fa3_block_lists* lists) {
  (void)params, (void)bytes, (void)stream;
  return make(memory, lists);
}
fa3_status fa3_backward_make_block_lists(const fa3_backward_params* params, void* memory,
                                         size_t bytes, void* stream, fa3_block_lists* lists) {
  (void)params, (void)bytes, (void)stream;
  return make(memory, lists);
}
fa3_status fa3_forward_with_allocator(const fa3_forward_params* params,
                                      fa3_workspace_allocator lend, void* context, void* stream) {
  (void)lend, (void)context, (void)stream;
  say(params->options.score ? "scored" : "forward", params->options.block_lists);
  return FA3_OK;
}
fa3_status fa3_backward_with_allocator(const fa3_backward_params* params,
                                       fa3_workspace_allocator lend, void* context, void* stream) {
  (void)lend, (void)context, (void)stream;
  say("backward", params->options.block_lists);
  return FA3_OK;
}
