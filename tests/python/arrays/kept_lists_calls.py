# SPDX-License-Identifier: Apache-2.0
"""Calls on a GPU that is not there, whose library is kept_lists_library.c. Run by
test_kept_lists.py: prints what the library is asked for, and `= name` before each scene."""

import gc

import numpy as np

from fa3 import _native, masks
from fa3._options import IN_ORDER, Options

PLACE = Options._fields.index
capturing = False


class Array:
    """A tensor that counts writes, as torch's do."""

    def __init__(self, *shape):
        self.memory, self._version = np.zeros(shape, np.int32), 0

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        return self.memory.__dlpack__()


def kept(blocks, bits=None):
    return masks.keep_lists(masks.BlockMask(blocks, bits)).blocks


class Uncounted(Array):
    @property
    def _version(self):
        print("asked", flush=True)
        raise RuntimeError("Inference tensors do not track version counter.")

    @_version.setter
    def _version(self, number):
        pass


class Lent:
    def __del__(self):
        print("freed", flush=True)


def lend(count, index):
    return Lent(), 1 << 20


def on_gpu(shape, number=1, dtype="float16"):
    return number << 32, dtype, 2, 0, shape, tuple(int(np.prod(shape[i + 1 :])) for i in range(4))


def options(blocks, bits=None, **named):
    filled = [*IN_ORDER]
    for name, value in named.items():
        filled[PLACE(name)] = value
    filled[PLACE("block_mask")], filled[PLACE("block_mask_bits")] = blocks, bits
    return filled[: PLACE("dropout_key") + 1]


Q = on_gpu((1, 256, 2, 64))


def forward(blocks, bits=None, q=Q, allocate=lend, **named):
    _native.forward(allocate, q, q, q, q, None, *options(blocks, bits, **named))


def scored(blocks):
    score = (0, "return score;", None, False), 0, None, ()
    _native.forward_with_score(lend, score, Q, Q, Q, Q, None, *options(blocks))


def backward(blocks, **named):
    lse = on_gpu((1, 2, 256, 1), dtype="float32")
    given = Q, Q, Q, Q, Q, lse, None, Q, Q, Q, None
    _native.backward(lend, *given, *options(blocks, **named))


SCENES = {}


def scene(function):
    SCENES[function.__name__] = function


@scene
def kept_from_the_second_call_on():
    blocks = kept(Array(1, 1, 2, 2))
    for _ in range(4):
        forward(blocks)


@scene
def gone_with_the_map():
    blocks = kept(Array(1, 1, 2, 2))
    forward(blocks), forward(blocks)
    del blocks


@scene
def gone_with_the_bits():
    blocks, bits = Array(1, 1, 2, 2), Array(1, 128, 4)
    kept(blocks, bits)
    forward(blocks, bits), forward(blocks, bits)
    del bits
    print("the map is there", flush=True)
    forward(blocks, Array(1, 128, 4))


@scene
def made_anew_after_writes():
    blocks, bits = Array(1, 1, 2, 2), Array(1, 128, 4)
    kept(blocks, bits)
    for written in (None, blocks, bits):
        if written is not None:
            written._version += 1
        forward(blocks, bits), forward(blocks, bits)


@scene
def made_anew_for_memory_that_moved():
    blocks = kept(Array(1, 1, 2, 2))
    forward(blocks), forward(blocks)
    before = blocks.memory  # stays, so that the new one is elsewhere
    blocks.memory = np.zeros((1, 1, 2, 2), np.int32)
    forward(blocks), forward(blocks)
    del before


@scene
def of_each_kind_of_call():
    blocks = kept(Array(1, 1, 8, 8))
    kinds = [
        lambda: forward(blocks),
        lambda: forward(blocks, causal=True),
        lambda: forward(blocks, window_left=7),
        lambda: forward(blocks, q=on_gpu((1, 300, 2, 64))),
        lambda: backward(blocks),
        lambda: backward(blocks, deterministic=True),
        lambda: scored(blocks),
    ]
    for _ in range(3):
        for kind in kinds:
            kind()


@scene
def of_sixteen_kinds_at_most():
    blocks = kept(Array(1, 1, 8, 8))
    for window in range(17):
        forward(blocks, window_left=window), forward(blocks, window_left=window)
    for window in (16, 0, 16, 2, 1):
        forward(blocks, window_left=window)


@scene
def not_while_a_graph_is_captured():
    global capturing
    blocks = kept(Array(1, 1, 2, 2))
    forward(blocks), forward(blocks)
    capturing = True
    forward(blocks)
    capturing = False
    forward(blocks)


@scene
def not_of_sequences_with_lengths():
    blocks, used = kept(Array(1, 1, 2, 2)), Array(1)
    for _ in range(3):
        forward(blocks, seqused_k=used)


@scene
def not_where_writes_are_not_counted():
    for blocks in (Uncounted(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int32)):
        kept(blocks)
        for _ in range(3):
            forward(blocks)


@scene
def not_where_the_library_makes_none():
    blocks = kept(Array(1, 1, 2, 2))
    for _ in range(3):
        forward(blocks, softcap=5.0)


@scene
def not_beyond_a_gibibyte():
    one, other = kept(Array(1, 1, 2, 2)), kept(Array(1, 1, 2, 2))
    forward(one, sm_margin=1000), forward(one, sm_margin=1000)
    for _ in range(3):
        forward(other, sm_margin=100)
    del one
    forward(other, sm_margin=100, causal=True), forward(other, sm_margin=100, causal=True)


@scene
def not_without_memory():
    def none_left(count, index):
        raise MemoryError

    blocks = kept(Array(1, 1, 2, 2))
    for _ in range(3):
        forward(blocks, allocate=none_left)


@scene
def ended_by_the_user():
    def interrupted(count, index):
        raise KeyboardInterrupt

    blocks = kept(Array(1, 1, 2, 2))
    forward(blocks)
    try:
        forward(blocks, allocate=interrupted)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    forward(blocks)


@scene
def not_when_nobody_wants_them():
    blocks = kept(Array(1, 1, 2, 2))
    forward(blocks), forward(blocks)
    _native.keep_block_lists(None)
    forward(blocks), forward(blocks)
    _native.keep_block_lists(lambda: capturing)
    forward(blocks), forward(blocks)


@scene
def not_of_masks_that_are_not_said_to_be_kept():
    mask = masks.BlockMask(Array(1, 1, 2, 2), None)
    for _ in range(3):
        forward(mask.blocks)
    masks.keep_lists(mask)
    forward(mask.blocks), forward(mask.blocks)
    masks.keep_lists(mask, False)
    for _ in range(3):
        forward(mask.blocks)


_native.keep_block_lists(lambda: capturing)
for name, play in SCENES.items():
    print("=", name, flush=True)
    play()
    gc.collect()
