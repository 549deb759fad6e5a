# SPDX-License-Identifier: Apache-2.0
"""Score functions as users write them, made of captured tensors for some heads and lengths; and
tensors to call them with."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=generator(seed))


HEADS, KV_HEADS, ROWS, DIM = 4, 2, 40, 8


def inputs(rows=ROWS, keys=ROWS, batch=2, dtype=torch.float64):
    q = randn(batch, rows, HEADS, DIM, dtype=dtype, seed=11)
    k = randn(batch, keys, KV_HEADS, DIM, dtype=dtype, seed=12)
    v = randn(batch, keys, KV_HEADS, DIM, dtype=dtype, seed=13)
    return [x.requires_grad_() for x in (q, k, v)]


def use_at_one_address(makes, use):
    """Calls use() with what each of these functions returns, which lies where the one before lay.

    Something else may have come to that place, and stays: then all of it is done again, elsewhere.
    """
    for _ in range(50):
        address = None
        for make in makes:
            made = object_at(address, make)
            if made is None:
                break
            use(made)
            address = id(made)
            del made
        else:
            return
    raise AssertionError("nothing came to the address of what is gone")


def object_at(address, make):
    """What make() returns: made until it comes to this address, or anywhere if that is None. It may
    make no object beside, which would take the address each time. None: nothing came there."""
    gc.collect()  # of frames that stand in a circle
    elsewhere = []  # kept, so that memory that is free comes to its end
    while len(elsewhere) < 2000:
        made = make()
        if address in (None, id(made)):
            return made
        elsewhere.append(made)
    return None


def alibi(heads, rows, dtype):
    slopes = randn(heads, dtype=dtype, seed=1).abs()
    return lambda s, b, h, q, k: s + slopes[h] * (k - q), [slopes]


def softcap(heads, rows, dtype):
    return lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0), []


def relative_bias(heads, rows, dtype):
    table = randn(2 * rows, heads, dtype=dtype, seed=2)
    return lambda s, b, h, q, k: s + table[k - q + rows, h], [table]


def buckets(heads, rows, dtype):
    table = randn(heads, 8, dtype=dtype, seed=3)

    def t5(s, b, h, q, k):
        distance = torch.clamp(q - k, min=0)
        far = 4 + (torch.log2(distance.to(torch.float32) / 4 + 1e-6) * 2).to(torch.int32)
        return s + table[h, torch.where(distance < 4, distance, torch.clamp(far, max=7))]

    return t5, [table]


def bias(heads, rows, dtype):
    tensor = randn(2, heads, rows, rows, dtype=dtype, seed=4)
    return lambda s, b, h, q, k: s + tensor[b, h, q, k], [tensor]


def rows_of_rows(heads, rows, dtype):
    tensor = randn(heads, rows, dtype=dtype, seed=5)
    return lambda s, b, h, q, k: s * torch.sigmoid(tensor[h][q]) + tensor[h][k] ** 2, [tensor]


def documents(heads, rows, dtype):
    owner = torch.arange(rows) * 3 // rows
    return lambda s, b, h, q, k: torch.where(owner[q] == owner[k], s, -float("inf")), []


def temperature(heads, rows, dtype):
    factor = torch.tensor(0.7, dtype=dtype)
    return lambda s, b, h, q, k: s * factor, [factor]


def learned_slopes(heads, rows, dtype):
    logits = randn(heads, dtype=dtype, seed=6)

    def scaled(s, b, h, q, k):
        slopes = torch.nn.functional.softplus(logits)  # a whole tensor: left to torch
        return s - slopes[h] * (q - k).abs()

    return scaled, [logits]


def many_operations(heads, rows, dtype):
    weights = randn(heads, dtype=dtype, seed=7)

    def mixed(s, b, h, q, k):
        x = torch.exp(-torch.square(s - weights[h])) + torch.log1p(torch.abs(s))
        x = (
            x
            + torch.sin(s) * torch.cos(weights[h])
            + torch.erf(s / 2)
            + torch.tan(s / 9)
            - torch.nn.functional.silu(s)
        )
        x = x + torch.maximum(s, weights[h]) + torch.minimum(s, 0.5 * weights[h])
        x = x + torch.clamp(s, -0.7, 0.9) + torch.nn.functional.relu(s) + torch.rsqrt(s * s + 1)
        x = x + torch.where((q % 3 == 1) & ~(k // 2 > 2), s * 0.1, torch.sqrt(s * s + 2.0))
        return x + torch.pow(torch.abs(s) + 0.5, 1.5) + torch.exp2(s * 0.1) + (q - k) / 7

    return mixed, [weights]


ALL = (
    *(alibi, softcap, relative_bias, buckets, bias, rows_of_rows, documents, temperature),
    *(learned_slopes, many_operations),
)
