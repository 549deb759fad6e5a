# SPDX-License-Identifier: Apache-2.0
"""How a rank of a test joins its group, and runs cases that print what failed."""

import datetime
import json
import time
import traceback

import torch
import torch.distributed as dist


def join(rank, world, store, seconds=60.0):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def run_cases(cases, *arguments):
    for case in cases:
        failure = None
        begin = time.perf_counter()
        try:
            case(*arguments)
        except BaseException:  # pytest.fail, too
            failure = traceback.format_exc()
        print(f"{case.__name__}: {time.perf_counter() - begin:.2f} s")
        print(json.dumps([case.__name__, failure]), flush=True)
        if failure:
            break  # the ranks may no longer be at the same call
