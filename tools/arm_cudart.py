# SPDX-License-Identifier: Apache-2.0
"""Fetches the CUDA runtime of Arm hosts, which kernels are linked with.

    tools/arm_cudart.py FOLDER

Prints where in FOLDER its static libraries lie, of the version that nvcc has: FA3_ARM_CUDART of
cmake/aarch64-linux-gnu.cmake. A CUDA toolkit with files for Arm servers (sbsa) has them too.
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
        libraries = [name for name in archive.namelist() if name.endswith(".a")]
        archive.extractall(folder, libraries)
    return (folder / libraries[0]).resolve().parent


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(fetch(Path(sys.argv[1])))
