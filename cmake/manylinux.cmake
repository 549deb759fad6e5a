# FA3_MANYLINUX: what is built runs wherever glibc is 2.28 or later (manylinux_2_28), whatever this
# machine has. libstdc++ goes in; glibc is linked in the shape that it had then (tools/manylinux).
set(stubs ${PROJECT_BINARY_DIR}/manylinux)
execute_process(COMMAND python3 ${PROJECT_SOURCE_DIR}/tools/manylinux/glibc_stubs.py ${stubs}
  ${CMAKE_CXX_COMPILER} ${CMAKE_NM} ${CMAKE_AR} COMMAND_ERROR_IS_FATAL ANY)
# The linker would follow libgcc_s to symbols of the machine's own glibc.
add_link_options(-static-libstdc++ -L${stubs} -Wl,--allow-shlib-undefined -Wl,--exclude-libs,ALL)
string(APPEND CMAKE_EXE_LINKER_FLAGS " -Wl,--wrap=__libc_start_main ${stubs}/start.o")
