# SPDX-License-Identifier: Apache-2.0
#
# Toolchain for Arm hosts, from an x86-64 machine with Debian's cross compiler; programs run under
# user-mode emulation (tools/setup.sh arm).
#   cmake -S . -B build/arm -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# "max" has every extension that is emulated, bfloat16 products among them.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;max;-L;/usr/aarch64-linux-gnu)
# Used for its headers alone, from where this machine has it.
file(GLOB fmt_DIR /usr/lib/*/cmake/fmt)

# The CUDA engines: this machine's nvcc and headers; FA3_ARM_CUDART is libcudart_static.a's folder
# and libcudadevrt.a for aarch64, of nvcc's version (tools/arm_cudart.py).
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FA3_ARM_CUDART)
if(FA3_ARM_CUDART)
  set(CMAKE_CUDA_COMPILER nvcc)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  set(CMAKE_CUDA_FLAGS_INIT "-target-dir x86_64-linux -L${FA3_ARM_CUDART}")
  set(CUDA_cudart_static_LIBRARY ${FA3_ARM_CUDART}/libcudart_static.a CACHE FILEPATH "")
  set(CUDAToolkit_rt_LIBRARY rt CACHE STRING "")
  set(CUDA_CUDART ${CUDA_cudart_static_LIBRARY} CACHE FILEPATH "")
else()
  set(CMAKE_CUDA_COMPILER NOTFOUND)
endif()
