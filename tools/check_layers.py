# SPDX-License-Identifier: Apache-2.0
"""Holds the layer rule: includes point only downward (CONTRIBUTING.md has the picture).

For every file under src/ and include/, and of what tests share, this reads the quoted and <fa3/...>
includes and fails on one that its layer may not see.
Run: python3 tools/check_layers.py [ROOT]
"""

import re
import sys
from pathlib import Path

# What the CUDA engines share, bottom to top, and what each room may include.
CUDA_ROOMS = {
    "feature_params.h": "",
    "ptx/": "",
    "tile/": "ptx/",
    "softmax/": "tile/ ptx/",
    "mask/": "softmax/ tile/ ptx/",
    "dropout/": "feature_params.h ptx/",
    "backward/": "softmax/ tile/ ptx/",
    "host/": "feature_params.h softmax/ tile/",
    "kernels/": "host/ softmax/ tile/ ptx/",
    "engine_parts.h": "host/ kernels/",
    "lists/": "feature_params.h host/ tile/ ptx/",
    "jit/": "host/ softmax/ ptx/",
    "catalogue/": "jit/ ptx/",
}

# The rooms of the CPU engines likewise.
CPU_ROOMS = {
    "machine/": "",
    "kernels/": "machine/",
    "rows.h": "kernels/",
    "simd/": "kernels/ machine/",
    "caches/": "rows.h machine/",
    "gate/": "rows.h machine/",
    "oracle/": "gate/ caches/ rows.h machine/",
    "tiled/": "gate/ kernels/ rows.h machine/",
    "latent/": "tiled/ caches/ rows.h machine/",
    "": "latent/ tiled/ oracle/ caches/ kernels/ machine/",
}

# The rooms of the Hopper engine. Device code sees no planner, and a planner no launcher.
HOPPER_ROOMS = {
    "ptx/": "",
    "tile/": "ptx/",
    "config/": "tile/",
    "pipeline/": "config/ ptx/",
    "score_operands.h": "",
    "host/": "score_operands.h config/ tile/",
    "scheduler/": "pipeline/ config/ host/ ptx/",
    "forward_params.h": "score_operands.h scheduler/ config/",
    "combine/": "forward_params.h scheduler/ pipeline/ config/ host/ ptx/",
    "fp8/": "forward_params.h pipeline/ config/ host/ tile/ ptx/",
    "forward/": "combine/ fp8/ forward_params.h scheduler/ pipeline/ config/ tile/ ptx/",
    "decode/": "combine/ fp8/ forward_params.h scheduler/ pipeline/ config/ tile/ ptx/",
    "backward/": "scheduler/ pipeline/ config/ tile/ ptx/",
    "latent/": "pipeline/ config/ tile/ ptx/ engine.h",
    "latent/narrow/": "latent/latent_ pipeline/ config/ tile/ ptx/",
    "latent/wide/": "latent/latent_ pipeline/ config/ tile/ ptx/",
    "tutorial/": "scheduler/ pipeline/ config/ tile/ ptx/",
    "kernels/": "config/ tile/",
    "instances/": "kernels/ forward/ decode/ backward/ config/",
    "plan/": "instances/ kernels/ fp8/ forward_params.h score_operands.h scheduler/ config/ host/ "
    "engine.h",
    "launch/": "plan/ instances/ kernels/ backward/ fp8/ combine/ "
    "forward_params.h score_operands.h scheduler/ config/ host/",
}

# The rooms of the ampere engine likewise.
AMPERE_ROOMS = {
    "config/": "",
    "tile/": "",
    "tile_schedule.h": "",
    "forward_params.h": "tile/ tile_schedule.h",
    "backward_params.h": "tile/",
    "forward/": "forward_params.h tile/ tile_schedule.h config/",
    "backward/": "backward_params.h tile/ config/",
    "kernels/": "config/",
    "instances/": "kernels/ forward/ backward/ config/",
    "plan/": "instances/ kernels/ forward_params.h backward_params.h tile_schedule.h config/ "
    "engine.h",
    "launch/": "plan/ instances/ kernels/ backward/ forward_params.h backward_params.h config/",
}

# The model of an SM that the kernels' sources run on in tests (docs/protocol-model.md): what all of
# it may include, and what each room may beside. "engine/" is the library's, or doubles of it.
MACHINE = "tests/cpp/engine/hopper/machine/"
MACHINE_HEADERS = (
    *("clock.h", "cuda_words.h", "failure.h", "fault.h", "instructions.h", "lanes.h"),
    *("machine.h", "many_orders.h"),
)
MACHINE_ROOMS = {
    "": "",
    "sm/": "sm/",
    "launch/": "launch/",
    "forward/": "forward/ launch/",
    "backward/": "backward/ launch/",
    "decode/": "decode/ launch/",
    "tests/": "tests/",
}

# What the tests of every engine share: cases, runs of them, and what is right.
SUPPORT = "tests/cpp/support/"
SUPPORT_HEADERS = ("deadline.h", "engines.h", "failure.h", "limits.h", "random.h")
SUPPORT_ROOMS = {
    "": "",
    "memory/": "memory/",
    "cases/": "cases/",
    "runs/": "runs/ cases/ memory/",
    "oracle/": "oracle/ runs/ cases/",
    "edges/": "edges/ memory/",
    "latent/": "latent/ memory/",
}


def rooms_of(engine: str, rooms: dict[str, str], *below: str) -> dict[str, list[str]]:
    return {
        f"src/engine/{engine}/{room}": [
            *("fa3/", "core/", *below),
            *(f"engine/{engine}/{seen}" for seen in (room or "engine.h", *seen_rooms.split())),
        ]
        for room, seen_rooms in rooms.items()
    }


def shared_by_tests(folder: str, named: str, headers, rooms: dict[str, str], *below: str):
    """All rooms see the headers; includes name them behind `named`."""
    return {
        f"{folder}{room}": [*below, *(f"{named}{seen}" for seen in (*headers, *seen_rooms.split()))]
        for room, seen_rooms in rooms.items()
    }


# Layer (longest matching path prefix wins) -> path prefixes that it may include.
ALLOWED = {
    "include/fa3/": ["fa3/"],
    "src/core/": ["fa3/", "core/"],
    "src/process/": ["process/"],
    "src/engine/engine.h": ["fa3/", "core/"],
    "src/engine/engines.cpp": [
        "engine/engine.h",
        "engine/cpu/engine.h",
        "engine/ampere/engine.h",
        "engine/hopper/engine.h",
    ],
    **rooms_of("cpu", CPU_ROOMS, "process/", "engine/engine.h"),
    **rooms_of("cuda", CUDA_ROOMS, "engine/engine.h"),
    **rooms_of("hopper", HOPPER_ROOMS, "engine/cuda/"),
    **rooms_of("ampere", AMPERE_ROOMS, "engine/cuda/"),
    "src/engine/ampere/engine.h": ["engine/engine.h", "engine/cuda/host/device.h"],
    "src/engine/ampere/engine.cpp": [
        *("core/", "engine/cuda/", "engine/ampere/engine.h"),
        *("engine/ampere/plan/", "engine/ampere/launch/"),
    ],
    "src/engine/hopper/engine.h": ["engine/engine.h", "engine/cuda/host/device.h"],
    "src/engine/hopper/engine.cpp": [
        *("core/", "engine/cuda/", "engine/hopper/engine.h"),
        *("engine/hopper/plan/", "engine/hopper/launch/", "engine/hopper/host/"),
        *("engine/hopper/latent/", "engine/hopper/latent_view.h"),
    ],
    "src/engine/hopper/latent_view.": [
        *("fa3/", "core/", "engine/hopper/latent/", "engine/hopper/latent_view.h"),
        *("engine/hopper/plan/", "engine/hopper/launch/"),
    ],
    "src/plan/": ["fa3/", "core/", "process/", "engine/engine.h", "plan/"],
    "src/api/": ["fa3/", "core/", "process/", "engine/engine.h", "plan/", "api/"],
    "src/ring/": ["fa3/", "core/", "engine/engine.h", "api/", "ring/"],
    "src/cli/": [
        *("fa3/", "core/"),
        *("engine/cpu/kernels/isa.h", "engine/cpu/kernels/kernels.h"),
        *("engine/cuda/host/device.h", "engine/ampere/engine.h", "engine/hopper/engine.h"),
        "cli/",
    ],
    **shared_by_tests(MACHINE, "", MACHINE_HEADERS, MACHINE_ROOMS, "core/", "engine/"),
    **shared_by_tests(
        *(SUPPORT, "support/", SUPPORT_HEADERS, SUPPORT_ROOMS),
        *("fa3/", "core/", "cli/call/error_rule.h"),
    ),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(fa3/[^>]+)>)', re.MULTILINE)
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inl", ".inc"}


def layer_of(path: str) -> str | None:
    """The longest layer prefix of a path relative to the root, or None."""
    fitting = [prefix for prefix in ALLOWED if path.startswith(prefix)]
    return max(fitting, key=len, default=None)


def violations(root: Path) -> list[str]:
    """One sentence per include that points upward or sideways."""
    found = []
    for path in sorted(
        path for top in ("src", "include", MACHINE, SUPPORT) for path in root.glob(f"{top}/**/*")
    ):
        if path.suffix not in SUFFIXES:
            continue
        relative = path.relative_to(root).as_posix()
        layer = layer_of(relative)
        if layer is None:
            found.append(f"{relative}: belongs to no layer of tools/check_layers.py")
            continue
        for match in INCLUDE.finditer(path.read_text()):
            target = match.group(1) or match.group(2)
            if not any(target.startswith(prefix) for prefix in ALLOWED[layer]):
                allowed = ", ".join(ALLOWED[layer])
                found.append(f"{relative}: {layer} may include {allowed}; not {target}")
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    found = violations(root)
    for sentence in found:
        print(sentence)
    print(f"layers: {len(found)} violation(s)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
