# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = [
    "BlockMask",
    "as_block_mask",
    "from_block_map",
    "from_dense",
    "from_rule",
    "from_slices",
    "from_torch",
    "from_tree",
    "keep_lists",
]

class BlockMask(NamedTuple):
    blocks: Any
    bits: Any

def as_block_mask(mask: Any) -> BlockMask: ...
def from_block_map(blocks: Any, *, block: int = 128) -> BlockMask: ...
def from_dense(mask: Any, *, compact: bool = False) -> BlockMask: ...
def from_rule(
    rule: Callable[[Any, Any, Any, Any], Any],
    batch: int,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    device: Any = None,
    compact: bool = False,
) -> BlockMask: ...
def from_slices(
    q_ranges: Any,
    k_ranges: Any,
    types: str | Sequence[str | int] | Any,
    seqlen_q: int,
    seqlen_k: int,
    *,
    compact: bool = False,
) -> BlockMask: ...
def from_torch(mask: Any, *, compact: bool = True) -> BlockMask: ...
def from_tree(tree: Any, seqused_k: Any, longest: int) -> BlockMask: ...
def keep_lists(mask: BlockMask, keep: bool = True) -> BlockMask: ...

# What fa3's own modules take.
BLOCK: int
FULL: int
LENGTHS: tuple[str, ...]

def kept_of(mask: Any, name: str, make: Callable[[Any], Any]) -> Any: ...
def refuse_other_extents(mask: Any, q: Any, k: Any, options: Any) -> None: ...
