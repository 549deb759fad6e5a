# SPDX-License-Identifier: Apache-2.0
"""Calls of which something was decided, and what finds out whether a change is seen. Next:
test_flex_prepared.py."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402

from fa3 import masks  # noqa: E402
from fa3.flex import attention, bias, query  # noqa: E402
from fa3.flex.kept import table  # noqa: E402

BATCH, ROWS, HEADS, DIM = 2, 24, 2, 8
DRAW = torch.Generator().manual_seed(3)
Q, K, V = (torch.randn(BATCH, ROWS, HEADS, DIM, generator=DRAW) for _ in range(3))


@pytest.fixture(autouse=True)
def new_table():
    forget()


def forget():
    table.clear()


@pytest.fixture
def decided(monkeypatch):
    """The calls for which something was decided."""
    made = []
    for module in (attention, bias):
        own = module.decide
        recorded = lambda *given, own=own: made.append(given) or own(*given)  # noqa: E731
        monkeypatch.setattr(module, "decide", recorded)
    return made


def flex(score_mod=None, tensors=(Q, K, V), **options):
    return fa3.flex_attention(*tensors, score_mod=score_mod, **options)


def is_recorded(out):
    """As one call; torch records its operations wherever they run."""
    assert out.grad_fn is None or out.grad_fn.name() == "FlexBackward"
    return out.grad_fn is not None


def is_seen(call, *changes):
    """Whether each change alters what a warm call returns, to what a first call would."""
    for change in changes:
        before = call()
        assert torch.equal(call(), before)
        change()
        mine = call()
        forget()
        assert torch.equal(mine, call())
        assert not torch.equal(mine, before)
    return True


SLOPES, OWNER = torch.tensor([0.5, 0.25]), torch.arange(ROWS) // 7
BIAS = torch.randn(HEADS, ROWS, ROWS, generator=DRAW)
LEARNED = torch.nn.Parameter(BIAS)
BLOCKS = masks.from_rule(lambda b, h, i, j: i >= j, 1, 1, ROWS, ROWS, device="cpu")
TORCHS = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, ROWS, ROWS, device="cpu")
USED = torch.tensor([20, 9], dtype=torch.int32)
STARTS = torch.tensor([0, 10, 24], dtype=torch.int32)
PACKED = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 24, "max_seqlen_k": 24}
STEP = {"tensors": (Q[:, :1], K, V), "seqused_k": USED}


def softcap(s, b, h, i, j):
    return 5 * torch.tanh(s / 5)


def alibi(s, b, h, i, j):
    return s + SLOPES[h] * (j - i)


def documents(b, h, i, j):
    return OWNER[i] == OWNER[j]


def attend(tensors=(Q, K, V), **options):
    return fa3.attention(*tensors, **options)


CALLS = {
    "a function": lambda: flex(softcap),
    "a function made anew": lambda: flex(lambda s, b, h, i, j: s * 2),
    "captured slopes": lambda: flex(alibi, causal=True),
    "documents": lambda: flex(mask_mod=documents),
    "documents and a function": lambda: flex(softcap, mask_mod=documents),
    "a block mask": lambda: flex(block_mask=BLOCKS),
    "a block mask and a function": lambda: flex(softcap, block_mask=BLOCKS),
    "a block mask and a window": lambda: flex(block_mask=BLOCKS, window=(3, None)),
    "a block mask and a mask": lambda: flex(block_mask=BLOCKS, mask_mod=documents),
    "torch's block mask": lambda: flex(softcap, block_mask=TORCHS),
    "packed": lambda: flex(softcap, tensors=(Q[0], K[0], V[0]), **PACKED),
    "packed documents": lambda: flex(mask_mod=documents, tensors=(Q[0], K[0], V[0]), **PACKED),
    "a step": lambda: flex(softcap, **STEP),
    "slopes": lambda: attend(alibi_slopes=SLOPES, window=(9, 0)),
    "a bias": lambda: attend(bias=BIAS, softcap=3.0),
    "parameters": lambda: attend(bias=LEARNED, alibi_slopes=torch.nn.Parameter(SLOPES)),
    "captured parameters": lambda: flex(lambda s, b, h, i, j: s + LEARNED[h, i, j]),
    "a bias of booleans": lambda: attend(bias=BIAS > 0),
    "a step with slopes": lambda: attend(alibi_slopes=SLOPES, causal=True, **STEP),
    "packed slopes": lambda: attend((Q[0], K[0], V[0]), alibi_slopes=SLOPES, **PACKED),
}


def kernels_on_the_cpu(monkeypatch, kernel):
    """New decisions are those of a GPU that has kernels, and kernel(...) stands for the library's
    forward_with_score()."""
    for module in (attention, bias):
        decided = module.decided
        with_kernels = lambda *x, of=decided, **y: of(*x, **y)._replace(has_kernels=True)  # noqa: E731
        monkeypatch.setattr(module, "decided", with_kernels)
    monkeypatch.setattr(attention.device._native, "forward_with_score", kernel)
    monkeypatch.setattr(query, "nvrtc_path", lambda: None)
    forget()
