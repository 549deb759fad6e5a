# SPDX-License-Identifier: Apache-2.0
"""Three ranks, of which the last is killed, or late: see test_distributed.py.

The others print the error that they get, and after how many seconds.
"""

import json
import os
import signal
import time

import torch
from distributed_group import join

from fa3 import distributed

WORLD, TIMEOUT = 3, 3.0


def run_rank(rank, world, store, fault, method):
    join(rank, world, store, TIMEOUT)
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


def fail(fault):
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(2 * TIMEOUT)
