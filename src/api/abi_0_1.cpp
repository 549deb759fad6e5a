// SPDX-License-Identifier: Apache-2.0
//
// The init functions of programs that were compiled when fa3.h did not have them inline: they fill
// structs of that time, the first rows of layout.h. So this file may not include fa3.h.
#include <cstddef>

#define FA3_EXPORT extern "C" __attribute__((visibility("default")))

FA3_EXPORT void fa3_forward_params_init_sized(void* params, size_t struct_size);
FA3_EXPORT void fa3_backward_params_init_sized(void* params, size_t struct_size);
FA3_EXPORT void fa3_merge_params_init_sized(void* params, size_t struct_size);

FA3_EXPORT void fa3_forward_params_init(void* params) {
  fa3_forward_params_init_sized(params, 1424);
}
FA3_EXPORT void fa3_backward_params_init(void* params) {
  fa3_backward_params_init_sized(params, 1624);
}
FA3_EXPORT void fa3_merge_params_init(void* params) {
  fa3_merge_params_init_sized(params, 432);
}
