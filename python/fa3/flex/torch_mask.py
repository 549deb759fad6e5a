# SPDX-License-Identifier: Apache-2.0
"""What is made of torch's BlockMask stays with it, as attributes, for as long as it says the same:
its lists of blocks are the same tensors with the same elements, and so is what its mask_mod reads.

torch reads all of that in each call. A BlockMask of which that cannot be told is read in each call
here too. Next: kept.py.
"""

from typing import Any, NamedTuple

import torch

from fa3 import _native, masks
from fa3.flex.kept import names_of
from fa3.torch.operators import HAVE_MEMORY


class Kept(NamedTuple):
    key: bytes  # the signature, with the writes to all sources
    sources: list  # tensors, kept alive so that no others have their addresses
    value: Any


def block_mask_of(mask):
    """The fa3.masks.BlockMask of torch's."""
    return kept_of(mask, "_fa3_block_mask", new_block_mask, mask.mask_mod)


def new_block_mask(mask):
    # A graph that is captured cannot wait, and may run when what mask_mod reads is another.
    return masks.from_torch(mask, compact=not is_captured(mask))


def kept_of(mask, name, make, function=None):
    """make(mask), which is kept by this name and may be saved for a backward pass later, whatever
    mode it is first met in. function: that make() calls."""
    sources = []
    lists = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    given = names_of, HAVE_MEMORY, sources, (*lists, function), mask.BLOCK_SIZE, mask.seq_lengths
    key = _native.signature_with_writes(*given)
    kept = getattr(mask, name, None)
    if kept is not None and kept.key == key:
        return kept.value
    with torch.inference_mode(False), torch.no_grad():
        made = make(mask)
    if key is not None and are_counted(sources, lists) and not is_captured(mask):
        setattr(mask, name, Kept(key, sources, made))
    return made


def are_counted(sources, lists):
    """Whether torch counts all writes to the sources. In inference mode it counts none, where
    nobody writes to lists that create_block_mask() made."""
    uncounted = [tensor for tensor in sources if _native.version_of(tensor) is None]
    return all(t.is_inference() and any(t is one for one in lists) for t in uncounted)


def is_captured(mask):
    return mask.kv_indices.is_cuda and torch.cuda.is_current_stream_capturing()
