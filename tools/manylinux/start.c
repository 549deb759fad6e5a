/* SPDX-License-Identifier: Apache-2.0
 *
 * A program's first code calls __libc_start_main, which since 2.34 runs the constructors by itself.
 * Before, the program brought the function that does: here it is (ld --wrap=__libc_start_main). */
#include <stddef.h>

typedef void (*Constructor)(int, char**, char**);
extern Constructor __preinit_array_start[] __attribute__((visibility("hidden")));
extern Constructor __preinit_array_end[] __attribute__((visibility("hidden")));
extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));
void _init(void);

typedef int (*Main)(int, char**, char**);
int __real___libc_start_main(Main main, int count, char** arguments, Constructor init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end);

static void construct(int count, char** arguments, char** environment) {
  for (Constructor* c = __preinit_array_start; c != __preinit_array_end; ++c) {
    (*c)(count, arguments, environment);
  }
  _init();
  for (Constructor* c = __init_array_start; c != __init_array_end; ++c) {
    (*c)(count, arguments, environment);
  }
}

int __wrap___libc_start_main(Main main, int count, char** arguments, Constructor init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  (void)init;
  return __real___libc_start_main(main, count, arguments, construct, fini, loader_fini, stack_end);
}
