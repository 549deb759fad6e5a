# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is longer than one GPU: context parallelism for torch.distributed.

    from fa3 import distributed
    q, k, v = (distributed.shard(x) for x in (q, k, v))  # this rank's rows
    out = distributed.attention(q, k, v, causal=True)  # exact, differentiable

The layers, bottom to top: layout.py (who has which rows), cover.py and schedule.py (what a rank
does, as data), transport/ (how rows get there), merged.py and run.py (both passes), heads.py
(all-to-all), agree.py and describe.py (arguments), attention.py. cost.py and choose.py decide
"auto". step.py has one step of a ring, for rings of one's own.
"""

from fa3.distributed.attention import attention
from fa3.distributed.plan import plan
from fa3.distributed.sharding import positions, shard, shard_labels, unshard
from fa3.distributed.step import backward_step, forward_step

__all__ = [
    "attention",
    "backward_step",
    "forward_step",
    "plan",
    "positions",
    "shard",
    "shard_labels",
    "unshard",
]


def __dir__():
    return __all__
