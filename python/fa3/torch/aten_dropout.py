# SPDX-License-Identifier: Apache-2.0
"""Dropout of torch's attention operators, and whether fa3 ran the forward of a backward.

A backward has to run where its forward ran: with dropout no other kernel draws that mask. The
random state of torch's operators says who ran the forward, in two ways. Its memory has more words
than the state. Compilers, CUDA graphs and autograd keep that memory, and a compiled program checks
the state's shape, strides and dtype alone. Where hooks of saved tensors have copied the state, its
numbers say so, and the host waits for them. Next: aten_kernels.py.
"""

from typing import NamedTuple

import torch

STATE_WORDS = 33  # of 8 bytes; torch's own states have 1 or 2
TAG = 0x66613373  # the upper half of an offset that fa3 draws; torch's own offsets count calls


class Refused(Exception):
    """A call that fa3 leaves to torch's own kernel."""


class Dropout(NamedTuple):
    """The probability, and (seed, offset) as an int64 tensor; None without dropout."""

    p: float
    seed: "torch.Tensor | None"

    @classmethod
    def drawn(cls, p, q):
        if p == 0:
            return WITHOUT_DROPOUT
        seen.dropout = True
        return cls(p, drawn_state(q.device))

    @classmethod
    def saved(cls, p, state):
        """From the rng_state of the forward call."""
        if p > 0 and state is None:
            raise Refused("dropout_p without the random state of its forward is not supported")
        return cls(p, state.view(torch.int64) if p > 0 else None)

    def options(self):
        return {"dropout_p": self.p, "dropout_seed": self.seed}

    def state(self, q):
        return new_state(q.device) if self.seed is None else self.seed

    def results(self, q):
        """rng_state, philox_offset and debug_attn_mask of torch's operators."""
        offset = q.new_empty((), dtype=torch.uint64)
        return self.state(q).view(torch.uint64), offset, q.new_empty(0)


class Seen:
    """What this process has done so far."""

    dropout = False  # whether a call of fa3's under torch's operators had dropout


seen = Seen()


def new_state(device):
    """(seed, offset) in memory that says that fa3 ran the forward."""
    return torch.empty(STATE_WORDS, dtype=torch.int64, device=device).as_strided((2,), (1,))


def drawn_state(device):
    """One kernel on a GPU, of torch's generator: as fa3.torch.dropout.draw(), and tagged."""
    return new_state(device).random_(TAG << 32, (TAG + 1) << 32)


def cannot_wait(tensor):
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_ours(state, offset, dropout_p):
    """Whether fa3 ran the forward with this state: True, False, or a tensor that will know.

    A GPU that records a CUDA graph can neither be asked nor waited for.
    """
    if state is None:
        return False
    if state.untyped_storage().nbytes() == 8 * STATE_WORDS:
        return True
    if dropout_p == 0 or not seen.dropout or offset is None:
        return False
    tagged = offset.view(torch.int64) >> 32 == TAG
    return tagged if cannot_wait(tagged) else bool(tagged)


def is_ours_of_flash(arguments):
    state = arguments.get("philox_seed", arguments.get("rng_state"))
    offset = state[1] if state is not None and state.shape == (2,) else None
    return is_ours(state, offset, arguments["dropout_p"])


def is_ours_of_cudnn(arguments):
    return is_ours(arguments["philox_seed"], arguments["philox_offset"], arguments["dropout_p"])


WITHOUT_DROPOUT = Dropout(0.0, None)
