# Binaries are hardened as distributions harden their packages:
# * canaries behind arrays on the stack (-fstack-protector-strong) and checked copies
#   (_FORTIFY_SOURCE, which wants an optimizing compiler);
# * tables of functions that are read-only once a library is loaded (full RELRO);
# * on x86-64, shadow stacks and landing pads (CET). The C library's start files of Debian 12 have no
#   note of CET, so the linker is told of the shadow stack. It cannot vouch for landing pads.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)
check_cxx_compiler_flag(-fcf-protection=full FA3_HAS_CET)
check_linker_flag(CXX -Wl,-z,shstk FA3_LINKS_CET)

function(fa3_harden target)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()  # sanitizers watch the same
  endif()
  set(options -fstack-protector-strong)
  if(FA3_HAS_CET)
    list(APPEND options -fcf-protection=full)
  endif()
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    list(APPEND options -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    return()
  endif()
  target_link_options(${target} PRIVATE -Wl,-z,relro,-z,now)
  if(FA3_HAS_CET AND FA3_LINKS_CET)
    target_link_options(${target} PRIVATE -Wl,-z,shstk)
  endif()
endfunction()
