# SPDX-License-Identifier: Apache-2.0
"""Fetches the CUDA runtime of Arm hosts, which kernels are linked with.

    tools/arm_cudart.py FOLDER

Prints where in FOLDER libcudart_static.a lies, of the version that nvcc has: FA3_ARM_CUDART of
cmake/aarch64-linux-gnu.cmake. A CUDA toolkit with files for Arm servers (sbsa) has it too.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path


def fetch(folder: Path) -> Path:
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    assert found is not None, said
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    command += ["--only-binary=:all:", "--platform=manylinux2014_aarch64"]
    subprocess.run([*command, f"nvidia-cuda-runtime=={found[1]}.*"], check=True)
    (wheel,) = folder.glob("nvidia_cuda_runtime-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (n for n in archive.namelist() if n.endswith("/libcudart_static.a"))
        return Path(archive.extract(library, folder)).resolve().parent


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(fetch(Path(sys.argv[1])))
