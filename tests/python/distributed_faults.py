# SPDX-License-Identifier: Apache-2.0
"""One rank of three, of which the last is killed, or late: see test_distributed.py.

    distributed_faults.py RANK STORE FAULT METHOD

Prints the error and the seconds that it took.
"""

import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from fa3 import distributed

WORLD, TIMEOUT = 3, 3.0


def main():
    rank, store, fault, method = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    q, k, v = (torch.randn(1, 8, WORLD, 16, requires_grad=True) for _ in range(3))

    def both_passes(softcap=0.0):
        distributed.attention(q, k, v, causal=True, method=method, softcap=softcap).sum().backward()

    both_passes()  # all is well
    begin = time.monotonic()
    try:
        if rank == WORLD - 1:
            fail(fault)
        both_passes(softcap=2.0 if fault == "late_and_new" else 0.0)
        print(json.dumps([None, 0.0]))
    except Exception as error:
        print(json.dumps([f"{type(error).__name__}: {error}", time.monotonic() - begin]))
    sys.stdout.flush()
    os._exit(0)  # without waiting for others, as a program that ends by an error


def fail(fault):
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(2 * TIMEOUT)


if __name__ == "__main__":
    main()
