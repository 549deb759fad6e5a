# SPDX-License-Identifier: Apache-2.0
"""Builds the Python wheels as they are given to others, from the source distribution.

    tools/build_wheel.py FOLDER [cuda|cpu ...] [x86_64|aarch64 ...]

Into FOLDER goes the wheel with the GPU's kernels (where nvcc is), into FOLDER/cpu the one without;
for this machine, or for those named: an x86-64 machine builds for Arm too (tools/setup.sh arm).
Each runs on every Linux of its machine with glibc 2.28 or later (cmake/manylinux.cmake), which
auditwheel confirms. Beside each lies its software bill of materials (tools/bill_of_materials.py).
The same sources, g++, nvcc, cmake, scikit-build-core and TMPDIR give the same
bytes: archives carry a fixed time (or SOURCE_DATE_EPOCH), and the folder of the build is named by
them.
"""

import fcntl
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import arm_cudart
import bill_of_materials

ROOT = Path(__file__).resolve().parent.parent
GLIBC_MINOR = 28
THIS_MACHINE = platform.machine()
MACHINES = {THIS_MACHINE, "aarch64"}
CALL = "import json, sys; from scikit_build_core import build; print(getattr(build, sys.argv[1])("
CALL += "sys.argv[2], json.loads(sys.argv[3])))"


def build(hook: str, where: Path, into: Path, settings: str = "{}") -> Path:
    """Calls a hook of the build backend; the file that it made."""
    command = [sys.executable, "-c", CALL, hook, str(into.resolve()), settings]
    environment = os.environ | {"CCACHE_BASEDIR": str(where)}  # folders differ, sources do not
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-8000:] + done.stderr[-8000:])
    return into / done.stdout.split()[-1]


def platform_of(machine: str) -> str:
    return f"manylinux_2_{GLIBC_MINOR}_{machine}"


def settings_for(kind: str, machine: str, folder: Path) -> dict[str, str]:
    """Settings for scikit-build-core. What has to be fetched goes into `folder`."""
    defines = {"FA3_MANYLINUX": "ON", "FA3_CUDA": "ON" if kind == "cuda" else "OFF"}
    if machine != THIS_MACHINE:
        defines["CMAKE_TOOLCHAIN_FILE"] = f"cmake/{machine}-linux-gnu.cmake"
        if kind == "cuda":
            defines["FA3_ARM_CUDART"] = str(arm_cudart.fetch(folder))
    settings = {f"cmake.define.{name}": value for name, value in defines.items()}
    settings["wheel.tags"] = f"cp310-abi3-{platform_of(machine)}"
    return settings | {"wheel.reproducible": "true", "build-dir": "build"}


def build_wheel(sdist: Path, into: Path, settings: dict[str, str]) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    # nvcc names what is local to a file after the file's path: the same sources, the same path.
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    folder = Path(tempfile.gettempdir(), f"fa3-wheel-{digest[:16]}")
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another build of these sources waits
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            (unpacked,) = folder.iterdir()
            return build("build_wheel", unpacked, into, json.dumps(settings))
        finally:
            shutil.rmtree(folder)


def audit(wheel: Path, machine: str) -> None:
    """Fails unless auditwheel finds the wheel as old as its name says, or older."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r'platform tag: "manylinux_2_(\d+)_(\w+)"', " ".join(done.stdout.split()))
    if found is None or int(found[1]) > GLIBC_MINOR or found[2] != machine:
        expected = platform_of(machine)
        sys.exit(f"{wheel.name}: expected {expected}, auditwheel says:\n{done.stdout}{done.stderr}")


def nvcc_version() -> str:
    said = subprocess.check_output(["nvcc", "--version"], text=True)
    return re.search(r"\bV([\d.]+)", said)[1]


def main() -> int:
    words = sys.argv[2:]
    if len(sys.argv) < 2 or not {"cuda", "cpu"} | MACHINES >= set(words):
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    kinds = [word for word in words if word not in MACHINES]
    kinds = kinds or (["cuda"] if shutil.which("nvcc") else []) + ["cpu"]
    machines = dict.fromkeys(word for word in words if word in MACHINES) or [THIS_MACHINE]
    folder.mkdir(parents=True, exist_ok=True)
    sdist = build("build_sdist", ROOT, folder)
    for machine, kind in itertools.product(machines, kinds):
        into = folder if kind == "cuda" else folder / "cpu"
        with tempfile.TemporaryDirectory() as fetched:
            wheel = build_wheel(sdist, into, settings_for(kind, machine, Path(fetched)))
        audit(wheel, machine)
        compiler = "g++" if machine == THIS_MACHINE else f"{machine}-linux-gnu-g++"
        cuda_version = nvcc_version() if kind == "cuda" else None
        bill_of_materials.write(wheel, compiler, cuda_version)
        size = os.path.getsize(wheel) / 1e6
        print(f"{wheel}: {size:.1f} MB, {platform_of(machine)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
