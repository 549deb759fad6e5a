# SPDX-License-Identifier: Apache-2.0
#
# Toolchain of a library for NVIDIA drivers of the 12 series. FA3_CUDA12: the toolkit that
# tools/cuda12.py makes.
#   cmake -S . -B build/cuda12 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/cuda12.cmake
#     -DFA3_CUDA12=$(python3 tools/cuda12.py build/cuda-12.9)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FA3_CUDA12)
set(CMAKE_CUDA_COMPILER ${FA3_CUDA12}/bin/nvcc)
set(CUDAToolkit_ROOT ${FA3_CUDA12})
# What newer modes of compression make, not every driver can read.
set(FA3_COMPRESS_MODE none CACHE STRING "nvcc's --compress-mode of the kernels: size, speed, none")
