# SPDX-License-Identifier: Apache-2.0
"""How the public functions enter fa3.flex: beside torch.compile, which cannot trace a tracer.

A score function is translated by calling it, watched. A compiler that followed would break its
graph at every step of that, and warn; told to leave the call alone, it breaks once and says why.
"""

import sys
from typing import NamedTuple

import torch

from fa3.flex import bias, lists, torch_mask
from fa3.flex.attention import attend
from fa3.flex.call import NO_LENGTHS

REASON = (
    "fa3 translates score functions and biases itself, and torch's BlockMask, in a step that "
    "torch.compile cannot trace; compile without fullgraph=True, call it outside of what is "
    "compiled, or give a mask that fa3.masks.from_torch has made"
)


class Functions(NamedTuple):
    attend: object
    attend_with_bias: object
    lists_of_booleans: object
    block_mask_of: object  # a fa3.masks.BlockMask of torch's
    no_lengths: dict  # what says that sequences have the tensors' lengths
    beside_compiler: bool  # torch's compiler was there when they were made


def functions():
    # Loading torch's compiler takes seconds: only functions for a program that has it ask for it.
    entries = attend, bias.attend, lists.of_booleans, torch_mask.block_mask_of
    if "torch._dynamo" not in sys.modules:
        return Functions(*entries, NO_LENGTHS, False)
    left_alone = (torch.compiler.disable(f, reason=REASON) for f in entries)
    return Functions(*left_alone, NO_LENGTHS, True)
