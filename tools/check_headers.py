# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone: it includes what it uses, whoever includes it.

    python3 tools/check_headers.py [TEXT...]    # only headers with one of these in their paths

Device headers are read by the host compiler, with the protocol model's doubles of ptx/ in front
(tests/cpp/engine/hopper/machine; for the ampere engine and latent caches those with numbers). Left
out by name are those that only nvcc can read, and those of kernels with a score function. Without a
CUDA toolkit the headers of CUDA engines are left out, which the last line says.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ROOT / "tests/cpp/engine/hopper/machine"
NUMERIC = ROOT / "tests/cpp/engine/ampere/numeric"
LATENT_NUMERIC = ROOT / "tests/cpp/engine/hopper/latent/numeric"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
GPU = ("src/engine/ampere/", "src/engine/hopper/", "src/engine/cuda/")
# Behind the doubles: the instructions themselves, and the tables of wgmma that a script writes; and
# what stands for the standard library.
NVCC_ALONE = (
    "src/engine/hopper/ptx/",
    "src/engine/cuda/jit/std.h",
    "src/engine/cuda/kernels/quantize_",
    "src/engine/hopper/fp8/quantize_t",
    "src/engine/cuda/softmax/distance_sums.cuh",
    *(
        f"src/engine/cuda/ptx/{name}.cuh"
        for name in ("instructions", "cp_async", "smem", "disturb")
    ),
)
# Headers of kernels that a score function is compiled into.
WITH_SCORE_FUNCTION = (
    "src/engine/ampere/backward/function_block.cuh",
    "src/engine/ampere/forward/function_score.cuh",
    "src/engine/hopper/backward/scores/captured_tile.cuh",
    "src/engine/hopper/backward/scores/function_tile.cuh",
    "src/engine/hopper/decode/function_rows.cuh",
    "src/engine/hopper/forward/consumer/score/added_score.cuh",
    "src/engine/hopper/forward/consumer/score/function_score.cuh",
    "src/engine/hopper/forward/consumer/score/lines_score.cuh",
    "src/engine/hopper/forward/policies/scores_function.cuh",
    "src/engine/hopper/forward/producer/load_captured.cuh",
    "src/engine/hopper/forward/producer/write_key_terms.cuh",
)
# Compiled once for each instruction set, inside a namespace that its includer opens.
INCLUDED_ONLY = ("src/engine/cpu/simd/",)
FLAGS = (
    *("-std=c++20", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra"),
    *("-Wno-unknown-pragmas", "-Wno-missing-field-initializers", "-Wno-unused-function"),
    f"-I{MACHINE}",
)
WORDS = ("-include", str(MACHINE / "cuda_words.h"))
WITH_NUMBERS = ("-include", str(NUMERIC / "words.h"), f"-I{NUMERIC}")
LATENT = ("-include", str(LATENT_NUMERIC / "words.h"), f"-I{LATENT_NUMERIC}", f"-I{NUMERIC}")
# The doubles in front of a folder's headers.
DOUBLES = {
    "src/engine/ampere/": WITH_NUMBERS,
    "src/engine/cuda/kernels/latent_rows": LATENT,
    "src/engine/hopper/latent/": LATENT,
}


def headers(texts: list[str]) -> list[Path]:
    found = []
    for folder in ("include", "src"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            skipped = name.startswith((*NVCC_ALONE, *WITH_SCORE_FUNCTION, *INCLUDED_ONLY))
            chosen = not texts or any(text in name for text in texts)
            if path.suffix in (".h", ".cuh") and chosen and not skipped:
                found.append(path)
    return found


def problem(header: Path) -> str:
    """The compiler's first error, or nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
        source.write(f'#include "{header}"\n')
        source.flush()
        includes = (f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-isystem", str(CUDA))
        name = header.relative_to(ROOT).as_posix()
        words = next((d for folder, d in DOUBLES.items() if name.startswith(folder)), WORDS)
        command = [os.environ.get("CXX", "g++"), *words, *FLAGS, *includes, source.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return (errors or done.stderr.splitlines())[0].replace(f"{ROOT}/", "")


def main() -> int:
    chosen = headers(sys.argv[1:])
    gpu = [path for path in chosen if path.relative_to(ROOT).as_posix().startswith(GPU)]
    left_out = [] if CUDA.is_dir() else gpu
    chosen = [path for path in chosen if path not in left_out]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = list(zip(chosen, pool.map(problem, chosen), strict=True))
    bad = [(path, sentence) for path, sentence in problems if sentence]
    for path, sentence in bad:
        print(f"{path.relative_to(ROOT)}: {sentence}")
    words = f", {len(left_out)} left out: no CUDA toolkit in {CUDA}" if left_out else ""
    print(f"headers: {len(chosen)} compiled alone, {len(bad)} cannot be{words}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
