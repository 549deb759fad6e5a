# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a test as forks of one process, which has imported torch for all of them.

    distributed_ranks.py MODULE WORLDS DIR [ARGUMENTS]

MODULE.run_rank(rank, world, store, *ARGUMENTS) runs on every rank of each world, one world after
the other; what rank r of n writes is in DIR/n.r.
"""

import importlib
import os
import sys
import traceback
from pathlib import Path


def start(run, rank, world, store, arguments):
    if (child := os.fork()) != 0:
        return child
    with open(f"{store}.{rank}", "w") as written:
        os.dup2(written.fileno(), sys.stdout.fileno())
    try:
        run(rank, world, store, *arguments)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


def main():
    name, worlds, folder, *arguments = sys.argv[1:]
    module = importlib.import_module(name)
    for world in map(int, worlds.split(",")):
        store = Path(folder) / str(world)
        run = module.run_rank
        for child in [start(run, rank, world, store, arguments) for rank in range(world)]:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
