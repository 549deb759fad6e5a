# SPDX-License-Identifier: Apache-2.0
"""Builds the Python wheels as they are given to others, from the source distribution.

    tools/build_wheel.py FOLDER [cuda|cpu ...]

Into FOLDER goes the wheel with the GPU's kernels (where nvcc is), into FOLDER/cpu the one without.
Both run on every x86-64 Linux with glibc 2.28 or later (cmake/manylinux.cmake), which auditwheel
confirms. The same sources, g++, nvcc, cmake, scikit-build-core and TMPDIR give the same bytes:
archives carry a fixed time (or SOURCE_DATE_EPOCH), and the folder of the build is named by them.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC_MINOR = 28
PLATFORM = f"manylinux_2_{GLIBC_MINOR}_{platform.machine()}"
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


def build_wheel(sdist: Path, into: Path, cuda: str) -> Path:
    settings = f"""{{"wheel.tags": "cp310-abi3-{PLATFORM}", "wheel.reproducible": "true",
        "build-dir": "build",
        "cmake.define.FA3_MANYLINUX": "ON", "cmake.define.FA3_CUDA": "{cuda}"}}"""
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
            return build("build_wheel", unpacked, into, settings)
        finally:
            shutil.rmtree(folder)


def audit(wheel: Path) -> None:
    """Fails unless auditwheel finds the wheel as old as its name says, or older."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r'platform tag: "manylinux_2_(\d+)_', " ".join(done.stdout.split()))
    if found is None or int(found[1]) > GLIBC_MINOR:
        sys.exit(f"{wheel.name}: expected {PLATFORM}, auditwheel says:\n{done.stdout}{done.stderr}")


def main() -> int:
    if len(sys.argv) < 2 or not {"cuda", "cpu"} >= set(sys.argv[2:]):
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    kinds = sys.argv[2:] or (["cuda"] if shutil.which("nvcc") else []) + ["cpu"]
    folder.mkdir(parents=True, exist_ok=True)
    sdist = build("build_sdist", ROOT, folder)
    for kind in kinds:
        into = folder if kind == "cuda" else folder / "cpu"
        wheel = build_wheel(sdist, into, "ON" if kind == "cuda" else "OFF")
        audit(wheel)
        print(f"{wheel}: {os.path.getsize(wheel) / 1e6:.1f} MB, {PLATFORM}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
