/* SPDX-License-Identifier: Apache-2.0
 *
 * A program may close the library after a call whose pool threads still sleep in it: the library
 * asks the loader to stay (DF_1_NODELETE). Usage: unload_test PATH_OF_LIBFA3 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fa3/fa3.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRows = 600, kHeads = 4, kDim = 16, kElements = kRows * kHeads * kDim };

typedef void (*InitFunction)(fa3_forward_params*, size_t);
typedef fa3_status (*ForwardFunction)(const fa3_forward_params*, fa3_workspace_allocator, void*,
                                      void*);

static float g_q[kElements], g_o[kElements];
static void* g_workspace = NULL;

static void* allocate(void* context, size_t bytes) {
  (void)context;
  return g_workspace = aligned_alloc(256, (bytes / 256 + 1) * 256);
}

static int stays_loaded(void* library) {
  struct link_map* map = NULL;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_FLAGS_1) return (entry->d_un.d_val & DF_1_NODELETE) != 0;
  }
  return 0;
}

int main(int count, char** arguments) {
  void* library = dlopen(count > 1 ? arguments[1] : "libfa3.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  InitFunction init;
  ForwardFunction forward;
  *(void**)&init = dlsym(library, "fa3_forward_params_init_sized");
  *(void**)&forward = dlsym(library, "fa3_forward_with_allocator");
  if (init == NULL || forward == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;

  fa3_forward_params params;
  const fa3_tensor view = {g_q,
                           FA3_FLOAT32,
                           FA3_CPU,
                           0,
                           4,
                           {1, kRows, kHeads, kDim},
                           {kElements, kHeads * kDim, kDim, 1}};
  init(&params, sizeof(params));
  params.options.num_threads = 4;
  params.q = params.k = params.v = params.o = view;
  params.o.data = g_o;
  if (forward(&params, allocate, NULL, NULL) != FA3_OK) return fprintf(stderr, "no forward\n"), 1;

  if (!stays_loaded(library)) return fprintf(stderr, "the library may be unloaded\n"), 1;
  dlclose(library);
  usleep(50000);              /* the pool's threads would return to code that is gone */
  const pid_t child = fork(); /* and so would the library's handler of forks */
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  free(g_workspace);
  return status;
}
