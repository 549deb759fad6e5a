# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention where queries are packed and keys are not, or the other way round."""

import pytest
from flex_functions import DIM, HEADS, KV_HEADS, randn

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

LENGTHS, ROWS = [5, 0, 17], 17  # of the packed side; of each sequence of the other one
STARTS = torch.tensor([0, 5, 5, 22], dtype=torch.int32)
SLICES = [slice(a, b) for a, b in zip(STARTS.tolist(), STARTS.tolist()[1:], strict=False)]
SIDES = pytest.mark.parametrize("packed", ["q", "k"])


def tensors_of(packed):
    """q, k, v and the options that say where sequences are."""
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    shapes = {
        name: (22, count, DIM) if (name == "q") == (packed == "q") else (3, ROWS, count, DIM)
        for name, count in heads.items()
    }
    leaves = [randn(*shape, seed=len(n) + ord(n)).requires_grad_() for n, shape in shapes.items()]
    return leaves, {f"cu_seqlens_{packed}": STARTS, f"max_seqlen_{packed}": 17}


def sequence(x, n):
    """Rows of one batch entry: what has no batch is packed."""
    return x[None, SLICES[n]] if x.ndim == 3 else x[None, n]


@SIDES
@pytest.mark.parametrize("way", ["score_mod", "mask_mod", "bias"])
def test_sequences_are_those_alone(packed, way):
    leaves, lengths = tensors_of(packed)
    table = randn(3, HEADS, ROWS, ROWS, seed=5).requires_grad_()

    def options_of(first):
        if way == "bias":
            return {"bias": table[first:]} if first is None else {"bias": table[first, None]}
        first = first or 0
        if way == "mask_mod":
            return {"mask_mod": lambda b, h, i, j: table[b + first, h, i, j] > 0}
        return {"score_mod": lambda s, b, h, i, j: s + table[b + first, h, i, j]}

    call = fa3.attention if way == "bias" else fa3.flex_attention
    wanted = leaves if way == "mask_mod" else [*leaves, table]
    out, lse = call(*leaves, causal=True, return_lse=True, **options_of(None), **lengths)
    assert out.shape == leaves[0].shape
    parts = []
    for n, length in enumerate(LENGTHS):
        own = [sequence(x, n) for x in leaves]
        options = options_of(n)
        if way == "bias":
            queries, keys = (length, ROWS) if packed == "q" else (ROWS, length)
            options["bias"] = options["bias"][:, :, :queries, :keys]
        right = call(*own, causal=True, return_lse=True, **options)
        parts.append(right[0])
        torch.testing.assert_close(sequence(out, n), right[0])
        of_lse = lse[None, :, SLICES[n]] if packed == "q" else lse[None, n]
        torch.testing.assert_close(of_lse, right[1])
    do = randn(*out.shape, seed=9)
    found = torch.autograd.grad(out, wanted, do)
    ends = [sequence(do, n) for n in range(3)]
    expected = torch.autograd.grad(parts, wanted, ends)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right)


def test_a_gradient_is_stored_only_by_a_tensor_with_an_element_for_each_score():
    from fa3.flex.function.trace import trace
    from fa3.flex.stored import number_of

    q, k = torch.empty(3, 16, HEADS, DIM), torch.empty(48, KV_HEADS, DIM)
    lengths = {"cu_seqlens_q": None, "cu_seqlens_k": STARTS, "max_seqlen_q": 0, "max_seqlen_k": 16}
    for extents, number in (((16, 16), 0), ((16, 8), None), ((8, 16), None)):
        table = torch.empty(3, HEADS, *extents, dtype=torch.bfloat16)
        function, tensors = trace(lambda s, b, h, i, j, table=table: s + table[b, h, i, j])
        assert number_of(function, tensors, (0,), q, k, lengths) == number
        assert number_of(function, tensors, (0,), *packed_queries(q, k), lengths_of(16)) == number


def packed_queries(q, k):
    return q.flatten(0, 1), k.unflatten(0, (3, -1))


def lengths_of(rows):
    return {
        "cu_seqlens_q": STARTS, "cu_seqlens_k": None, "max_seqlen_q": rows, "max_seqlen_k": 0,
    }  # fmt: skip


@SIDES
@pytest.mark.parametrize("slope", [1.0, 0.5])
@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
def test_kernels_take_one_packed_side(packed, slope, device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    leaves, lengths = tensors_of(packed)
    table = randn(3, HEADS, ROWS, ROWS, seed=5).to(dtype)
    wide = [x.detach().repeat_interleave(4, -1).to(dtype) for x in leaves]  # of 32 columns

    def computed(on, kind):
        captured, own = table.to(on, kind), [x.to(on, kind).requires_grad_() for x in wide]
        options = {n: x.to(on) if isinstance(x, torch.Tensor) else x for n, x in lengths.items()}
        out = fa3.flex_attention(
            *own, score_mod=lambda s, b, h, i, j: s * slope + captured[b, h, i, j], **options
        )
        return out, *torch.autograd.grad(out.double().sin().sum(), own)

    error = 2e-2 if device == "cuda" else 1e-5
    for mine, right in zip(computed(device, dtype), computed("cpu", torch.float64), strict=True):
        assert (mine.cpu().double() - right).norm() <= error * right.norm()
