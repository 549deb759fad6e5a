# SPDX-License-Identifier: Apache-2.0
"""Makes a CUDA toolkit, of nvcc 13 and parts of 12.9, for programs on drivers of the 12 series.

    tools/cuda12.py FOLDER

Prints the toolkit's folder in FOLDER: FA3_CUDA12 of cmake/cuda12.cmake. A driver of the 12 series
loads neither machine code of ptxas 13, whose ELF files have another version, nor the runtime of
CUDA 13. Both come from the packages of CUDA 12.9; nvcc's front end stays, and what it writes of PTX
is declared to be of the version that ptxas 12.9 reads. The parts lie in nvcc's place: nvcc finds
the programs beside it.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = ("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79")
PTX_VERSION = "8.8"  # of ptxas 12.9
# The last argument is the PTX file. ptxas refuses what the older version does not have.
CICC = """#!/bin/sh
"{real}" "$@" || exit
for last; do :; done
sed -i 's/^\\.version 9\\..*/.version {version}/' "$last"
"""


def installed() -> Path:
    """The toolkit of the nvcc in PATH, which may be a script that calls it."""
    if shutil.which("nvcc") is None:
        sys.exit("expected nvcc of CUDA 13 in PATH, got none")
    command = ["nvcc", "-dryrun", "-E", "-x", "cu", "/dev/null"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return Path(re.search(r"^#\$ _HERE_=(.*)$", said, re.MULTILINE)[1]).resolve().parent


def make(folder: Path) -> Path:
    of_13 = installed()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*command, "--only-binary=:all:", *PACKAGES], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    of_12 = (folder / "nvidia").resolve()
    ptxas = of_12 / "cuda_nvcc/bin/ptxas"
    ptxas.chmod(0o755)
    toolkit = (folder / "toolkit").resolve()
    shutil.rmtree(toolkit, ignore_errors=True)
    bin_folder, cicc = toolkit / "bin", toolkit / "nvvm/bin/cicc"
    shutil.copytree(of_13 / "bin", bin_folder, symlinks=True)
    (bin_folder / "nvcc").touch()  # ccache tells compilers apart by their times
    (bin_folder / "ptxas").unlink()
    (bin_folder / "ptxas").symlink_to(ptxas)
    cicc.parent.mkdir(parents=True)
    cicc.write_text(CICC.format(real=of_13 / "nvvm/bin/cicc", version=PTX_VERSION))
    cicc.chmod(0o755)
    (toolkit / "nvvm/libdevice").symlink_to(of_13 / "nvvm/libdevice")
    target = toolkit / "targets" / f"{os.uname().machine}-linux"
    target.mkdir(parents=True)
    for place in (toolkit, target):
        (place / "lib").symlink_to(of_12 / "cuda_runtime/lib")
    (toolkit / "lib64").symlink_to("lib")
    # nvcc reads the headers in its target's folder, CMake gives C++ those beside bin: some names
    # stand for other functions in the runtime of 12.
    (target / "include").symlink_to(of_13 / "include")
    headers = {}
    for include in (of_13 / "include", of_12 / "cuda_nvcc/include", of_12 / "cuda_runtime/include"):
        headers |= {header.name: header for header in include.iterdir()}
    (toolkit / "include").mkdir()
    for name, header in headers.items():
        (toolkit / "include" / name).symlink_to(header)
    return toolkit


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(make(Path(sys.argv[1])))
