# SPDX-License-Identifier: Apache-2.0
"""fa3.mla of torch tensors: operators with shapes for compilers, and no gradients."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402


@pytest.fixture
def call():
    """q, a cache with rows in it, and indices."""
    generator = torch.Generator().manual_seed(0)
    cache = mla.empty_cache(4, 8, rows="group128", device="cpu")
    rows, rope = (torch.randn(32, n, generator=generator).bfloat16() for n in (512, 64))
    mla.append(cache, rows, rope, slots=torch.arange(32))
    q = torch.randn(2, 3, 4, 576, generator=generator).bfloat16()
    indices = torch.randint(-1, 32, (2, 3, 9), generator=generator).int()
    return q, cache, indices


def test_tensors_give_what_arrays_give(call):
    q, cache, indices = call
    given = {"indices": indices, "return_lse": True, "return_max": True}
    out, lse, largest = mla.attention(q, cache, **given)
    arrays = mla.attention(
        q.float().numpy(), cache.numpy(), **{**given, "indices": indices.numpy()}
    )
    torch.testing.assert_close(out.float(), torch.from_numpy(arrays[0]), rtol=2**-8, atol=2**-9)
    for ours, theirs in zip((lse, largest), arrays[1:], strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-6, atol=1e-6)
    for kind in (torch.int8, torch.float8_e4m3fn):
        assert torch.equal(mla.attention(q, cache.view(kind), indices=indices), out)
    given_out = torch.empty(2, 3, 4, 512)
    result = mla.attention(q, cache, indices=indices, out=given_out)
    assert result is given_out and torch.equal(given_out.bfloat16(), out)
    assert torch.equal(mla.gather(cache, torch.tensor([31]))[0, :4], mla_row(cache, 31)[:4])


def mla_row(cache, slot):
    row = cache.view(-1, 656)[slot]
    scales = row[512:528].clone().view(torch.float32).repeat_interleave(128)
    return (row[:512].view(torch.float8_e4m3fn).float() * scales).bfloat16()


def test_append_turns_queries_and_writes_in_place(call):
    _, cache, _ = call
    version = cache._version
    q_pe = torch.randn(1, 4, 64).bfloat16()
    tables = {"rotary_cos": torch.zeros(2, 32), "rotary_sin": torch.ones(2, 32)}
    turned = mla.append(
        cache,
        torch.ones(1, 512).bfloat16(),
        torch.ones(1, 64).bfloat16(),
        slots=torch.tensor([5]),
        positions=torch.tensor([1]),
        q_pe=q_pe,
        **tables,
    )
    assert torch.equal(turned, torch.cat([-q_pe[..., 32:], q_pe[..., :32]], -1))
    assert cache._version > version
    row = mla.gather(cache, torch.tensor([5]), dtype="float32")[0]
    assert torch.equal(row, torch.cat([torch.ones(512), -torch.ones(32), torch.ones(32)]))


def test_compilers_see_the_shapes(call):
    q, cache, indices = call

    def attend(q, cache, indices):
        return mla.attention(q * 2, cache, indices=indices, return_lse=True)

    out, lse = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, cache, indices)
    expected = attend(q, cache, indices)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    on_meta = mla.attention(
        q.to("meta"), cache.to("meta"), indices=indices.to("meta"), return_max=True
    )
    assert [tuple(x.shape) for x in on_meta] == [(2, 3, 4, 512), (2, 4, 3)]


def test_the_operators_pass_torchs_own_checks(call):
    q, cache, indices = call
    # (q, q_rope, cache, rope, descale, rows, page_table, seqused_k, cu_seqlens_q, ...)
    nothing = (None,) * 3
    of_extra = (None, None, None, 0, None, None, None)
    numbers = (0, None, False, True, False, 0, False, 0, 0, True, True)
    given = (q, None, cache, None, None, 0, *nothing, indices, None, *of_extra, *numbers)
    torch.library.opcheck(torch.ops.fa3.mla_forward.default, given)
    slots = torch.tensor([3, 1], dtype=torch.int32)
    torch.library.opcheck(
        torch.ops.fa3.mla_gather.default, (cache, None, None, 0, slots, "float32", 576, 0)
    )
    rows = torch.zeros(2, 512).bfloat16()
    torch.library.opcheck(
        torch.ops.fa3.mla_append.default,
        (cache, None, None, 0, rows, None, slots, None, None, None, None, False, 0, 0),
    )


def test_gradients_are_refused_by_name(call):
    q, cache, indices = call
    with pytest.raises(fa3.InvalidArgument, match="q: expected a tensor that needs no gradient"):
        mla.attention(q.requires_grad_(), cache, indices=indices)
    with torch.no_grad():
        mla.attention(q, cache, indices=indices)
    rows = torch.ones(1, 512, requires_grad=True)
    with pytest.raises(fa3.InvalidArgument, match="c_kv: expected a tensor that needs no gradient"):
        mla.append(cache, rows, slots=torch.tensor([0]))


def test_arrays_among_tensors_are_refused(call):
    q, cache, _ = call
    with pytest.raises(TypeError, match="indices"):
        mla.attention(q, cache, indices=np.zeros((2, 3, 9), np.int32))


def test_older_compilers_can_trace_every_function():
    # torch 2.11, for one, refuses to trace locals() in a compiled model.
    package = Path(fa3.__file__).parent
    called = [path for path in package.rglob("*.py") if "locals()" in path.read_text()]
    assert [str(path.relative_to(package)) for path in called] == ["jax/cache.py"]
