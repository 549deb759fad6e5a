# SPDX-License-Identifier: Apache-2.0
"""Steps of a ring: a forward that goes on from what others left, a backward that adds to it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.distributed import backward_step, forward_step  # noqa: E402

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICE = "cuda" if HOPPER else "cpu"
ENGINES = ["auto"] if HOPPER else ["auto", "reference", "standard"]
TYPES = [torch.bfloat16, torch.float16, *([] if HOPPER else [torch.float32])]
# (queries, keys, head dim, head dim of values): long, of odd lengths, few queries, other dims
SHAPES = [(256, 384, 128, 128), (77, 205, 64, 64), (3, 150, 128, 128), (70, 131, 80, 40)]


def draw(rows, keys, dim, dim_v, dtype, heads=4, kv_heads=2, batch=2, seed=0):
    torch.manual_seed(seed)
    shapes = ((rows, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim_v))
    return [torch.randn(batch, *shape).to(DEVICE, dtype) for shape in shapes]


def textbook(q, k, v, hidden=None):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    return ((scores - lse[..., None]).exp().nan_to_num(0) @ v).transpose(1, 2), lse


def error(x, y):
    return ((x.double() - y).norm() / y.norm()).item()


def step_by_step(q, k, v, ends, causal=False, **options):
    """Over keys [0, ends[0]), then to the next end, ...; the last keys end with the diagonal."""
    partial, begin = None, 0
    for end in ends:
        last = end == k.shape[1]
        keys, values = k[:, begin:end], v[:, begin:end]
        dtype = q.dtype if last else torch.float32
        mask = {"causal": True} if causal and last else {}
        partial = forward_step(q, keys, values, partial, out_dtype=dtype, **mask, **options)
        begin = end
    return partial


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_steps_give_what_one_call_does(shape, dtype, engine, causal):
    q, k, v = draw(*shape, dtype)
    rows, keys = shape[:2]
    first = keys - rows if causal else keys // 3
    hidden = None
    if causal:
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=DEVICE).triu(keys - rows + 1)
    expected, expected_lse = textbook(q, k, v, hidden)
    out, lse = step_by_step(q, k, v, (first // 2, first, keys), causal, engine=engine)
    once, once_lse = fa3.attention(q, k, v, causal=causal, return_lse=True, engine=engine)
    assert out.dtype == dtype
    assert error(out, expected) <= 1.2 * error(once, expected) + 3e-7
    assert error(lse, expected_lse) <= 1.5 * error(once_lse, expected_lse) + 3e-7


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keys", [1, 3, 65])
def test_keys_that_weigh_almost_nothing_beside_earlier_ones_change_nothing(keys, engine):
    """Their weights are subnormal, or zero: e^-80 to e^-120 of what was there."""
    q, k, v = draw(9, keys, 64, 64, TYPES[-1])
    own_lse = forward_step(q, k, v, engine=engine)[1]
    for ahead in range(80, 121):
        partial = torch.randn(2, 9, 4, 64, device=DEVICE), own_lse + ahead
        out, lse = forward_step(q, k, v, partial, out_dtype=torch.float32, engine=engine)
        torch.testing.assert_close(out, partial[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse, partial[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("window", [(-1, -1), (5, 0)])
def test_rows_without_keys_keep_what_they_had(engine, window):
    q, k, v = draw(200, 230, 64, 64, torch.bfloat16)
    options = {"engine": engine, "window": (-1, -1), "seqused_k": torch.tensor([0, 100])}
    options["seqused_k"] = options["seqused_k"].to(DEVICE, torch.int32)
    if window != (-1, -1):
        options |= {"window": (5, 0), "window_shift": -80}
    partial = torch.randn(2, 200, 4, 64, device=DEVICE), torch.randn(2, 4, 200, device=DEVICE)
    partial[0][:, 7], partial[1][..., 7] = torch.nan, -torch.inf  # nothing, whatever out holds
    partial[0][:, 9], partial[1][..., 9] = 5.0, torch.inf  # a row that a sink took
    own, own_lse = forward_step(q, k, v, **options)
    out, lse = forward_step(q, k, v, partial, **options)
    empty = own_lse == -torch.inf
    assert empty.any() and (window == (-1, -1) or not empty.all())
    assert torch.equal(lse[empty], partial[1][empty])
    kept = partial[0].transpose(1, 2)[empty & (partial[1] > -torch.inf)]
    assert torch.equal(out.transpose(1, 2)[empty & (partial[1] > -torch.inf)], kept)
    nothing = empty & (partial[1] == -torch.inf)
    assert nothing.any() and not out.transpose(1, 2)[nothing].any()
    assert (out[:, 9] == 5).all() and (lse[..., 9] == torch.inf).all()
    rest = ~empty & (partial[1] == -torch.inf)
    assert torch.allclose(out.transpose(1, 2)[rest], own.transpose(1, 2)[rest], rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_values_do_not_reach_rows_without_keys(engine):
    q, k, v = draw(130, 140, 64, 64, torch.float16)
    v[:] = torch.inf
    partial = torch.randn(2, 130, 4, 64, device=DEVICE), torch.zeros(2, 4, 130, device=DEVICE)
    hides_all = {"window": (0, 0), "window_shift": -1000, "engine": engine}
    out, lse = forward_step(q, k, v, partial, **hides_all)
    assert torch.equal(out, partial[0]) and torch.equal(lse, partial[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_packed_sequences_with_their_own_masks(engine):
    cu = torch.tensor([0, 90, 90, 300], dtype=torch.int32, device=DEVICE)
    q, k, v = (x.flatten(0, 1) for x in draw(160, 160, 128, 128, torch.bfloat16))
    options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 210, "max_seqlen_k": 210}
    options |= {"engine": engine}
    before = forward_step(q, k, v, window=(-1, 0), window_shift=-20, **options)
    out, lse = forward_step(q, k, v, before, window=(19, 0), **options)
    once, once_lse = fa3.attention(q, k, v, causal=True, return_lse=True, **options)
    assert (out - once.float()).abs().max() < 2**-7
    assert torch.allclose(lse, once_lse, atol=1e-5)
    assert not out[300:].any() and (lse[:, 300:] == -torch.inf).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"dropout_p": 0.3}, {"sink": 1.5}, {}])
def test_every_option_goes_on(engine, options):
    q, k, v = draw(96, 128, 64, 64, torch.bfloat16)
    if "sink" in options:
        options = {"sink": torch.full((4,), options["sink"], device=DEVICE)}
    if "dropout_p" in options:
        options = options | {"dropout_seed": torch.tensor([1, 2], device=DEVICE)}
    options["engine"] = engine
    partial = torch.randn(2, 96, 4, 64, device=DEVICE), torch.randn(2, 4, 96, device=DEVICE) + 4
    own = forward_step(q, k, v, **options)
    out, lse = forward_step(q, k, v, partial, **options)
    both = torch.stack([own[0], partial[0]]), torch.stack([own[1], partial[1]])
    expected, expected_lse = fa3.merge(*both)
    rounding = 2**-8 if HOPPER else 1e-5  # of weights, which another kernel rounds elsewhere
    assert torch.allclose(out, expected, rtol=1e-4, atol=rounding)
    assert torch.allclose(lse, expected_lse, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dim_v", [64, 40])
def test_it_works_in_place_in_any_layout(engine, dim_v):
    q, k, v = draw(150, 190, 64, dim_v, torch.bfloat16)
    out = torch.randn(2, 4, 150, dim_v, device=DEVICE).transpose(1, 2)
    lse = torch.randn(150, 2, 4, device=DEVICE).permute(1, 2, 0)
    expected, expected_lse = forward_step(q, k, v, (out, lse), engine=engine)
    given = forward_step(q, k, v, (out, lse), out=out, lse=lse, engine=engine)
    assert given[0] is out and given[1] is lse
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_partial_results_that_are_none_are_refused():
    q, k, v = draw(10, 12, 16, 16, torch.bfloat16)
    out, lse = forward_step(q, k, v)
    with pytest.raises(fa3.InvalidArgument, match="o_partial: expected float32, got bfloat16"):
        forward_step(q, k, v, (out.bfloat16(), lse))
    with pytest.raises(fa3.InvalidArgument, match="o_partial: expected seq = 10"):
        forward_step(q, k, v, (out[:, 1:], lse))
    with pytest.raises(fa3.InvalidArgument, match="lse_partial: expected query heads = 4"):
        forward_step(q, k, v, (out, lse[:, 1:]))
    with pytest.raises(fa3.InvalidArgument, match="expected both or none, got only o_partial"):
        forward_step(q, k, v, (out, None))
    shifted = torch.empty(2, 11, 4, 16, device=DEVICE)
    with pytest.raises(fa3.InvalidArgument, match="out: expected memory.*overlaps o_partial"):
        forward_step(q, k, v, (shifted[:, 1:], lse), out=shifted[:, :-1], lse=lse.clone())


def gradients_of(q, k, v, do, out, lse, **options):
    made = [torch.full(x.shape, torch.nan, device=DEVICE) for x in (q, k, v)]
    backward_step(do, q, k, v, out, lse, *made, **options)
    return made


MASKS = [{}, {"causal": True}, {"window": (9, 3)}, {"deterministic": True, "causal": True}]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("options", MASKS)
@pytest.mark.parametrize("shape", [(256, 256, 128, 128), (77, 205, 64, 64), (300, 90, 72, 40)])
def test_gradients_are_added_to_what_is_there(shape, options, dtype):
    q, k, v = draw(*shape, dtype)
    do = torch.randn(*q.shape[:3], v.shape[-1], device=DEVICE).to(dtype)
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    written = gradients_of(q, k, v, do, out, lse, **options)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    narrow = torch.autograd.grad(fa3.attention(*inputs, **options), inputs, do)
    for x, y in zip(written, narrow, strict=True):
        assert torch.allclose(x.to(dtype).float(), y.float(), rtol=2**-6, atol=2**-9)
        assert dtype == torch.float32 or not torch.equal(x, x.to(dtype).float())
    for of_q, of_keys in ((True, True), (True, False), (False, True)):
        before = [torch.randn_like(x) for x in written]
        now = [x.clone() for x in before]
        backward_step(
            do, q, k, v, out, lse, *now, accumulate_dq=of_q, accumulate_dkv=of_keys, **options
        )
        for x, old, new, adds in zip(now, before, written, (of_q, of_keys, of_keys), strict=True):
            assert torch.allclose(x, old + new if adds else new, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(256, 256, 128, 128), (130, 205, 64, 64), (300, 90, 72, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_step_may_have_gradients_of_keys_in_another_type(shape, causal):
    q, k, v = draw(*shape, torch.bfloat16)
    do = torch.randn(*q.shape[:3], v.shape[-1], device=DEVICE).bfloat16()
    out, lse = fa3.attention(q, k, v, return_lse=True, causal=causal)
    wide = gradients_of(q, k, v, do, out, lse, causal=causal)
    for of_q, of_keys in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        made = [torch.zeros_like(x, dtype=t) for x, t in ((q, of_q), (k, of_keys), (v, of_keys))]
        options = {"accumulate_dq": True} if of_q == torch.float32 else {"accumulate_dkv": True}
        backward_step(do, q, k, v, out, lse, *made, causal=causal, **options)
        for x, y in zip(made, wide, strict=True):
            assert torch.allclose(x.float(), y, rtol=2**-6, atol=2**-9)


def test_unused_rows_keep_their_gradients():
    q, k, v = draw(70, 70, 64, 64, torch.bfloat16)
    used = torch.tensor([5, 0], dtype=torch.int32, device=DEVICE)
    options = {"seqused_q": used, "seqused_k": used}
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    do = torch.randn_like(out)
    written = gradients_of(q, k, v, do, out, lse, **options)
    assert not any(x[n, rows:].any() for x in written for n, rows in enumerate((5, 0)))
    now = [torch.ones_like(x) for x in written]
    backward_step(do, q, k, v, out, lse, *now, accumulate_dq=True, accumulate_dkv=True, **options)
    assert all((x[n, rows:] == 1).all() for x in now for n, rows in enumerate((5, 0)))


def test_without_queries_or_keys_sums_stay():
    for rows, keys in ((0, 5), (5, 0)):
        q, k, v = draw(rows, keys, 64, 64, torch.bfloat16)
        out, lse = fa3.attention(q, k, v, return_lse=True)
        now = [torch.ones(x.shape, device=DEVICE) for x in (q, k, v)]
        backward_step(out, q, k, v, out, lse, *now, accumulate_dq=True, accumulate_dkv=True)
        assert all((x == 1).all() for x in now)


def test_sums_are_float32():
    q, k, v = draw(10, 12, 16, 16, torch.bfloat16)
    out, lse = fa3.attention(q, k, v, return_lse=True)
    narrow = [torch.zeros_like(x) for x in (q, k, v)]
    with pytest.raises(fa3.InvalidArgument, match="dq: expected float32 with accumulate_dq"):
        backward_step(out, q, k, v, out, lse, *narrow, accumulate_dq=True)
    with pytest.raises(fa3.InvalidArgument, match="dk: expected float32 with accumulate_dkv"):
        backward_step(out, q, k, v, out, lse, *narrow, accumulate_dkv=True)
