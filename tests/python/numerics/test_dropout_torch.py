# SPDX-License-Identifier: Apache-2.0
"""Dropout of torch tensors: seeds from generators, autograd, and the callers that stand on it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fa3.torch  # noqa: E402, F811
from fa3.compat import flash_attn as fa2  # noqa: E402
from fa3.torch import aten_dropout, aten_kernels, dropout, switch  # noqa: E402

P = 0.3
SEED = torch.tensor([123, -7])


def qkv(dtype=torch.float32, heads_k=2, keys=31, device="cpu"):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else dtype
    shapes = (2, 23, 4, 16), (2, keys, heads_k, 16), (2, keys, heads_k, 16)
    made = [torch.randn(shape) for shape in shapes]
    return [x.to(device, dtype).requires_grad_() for x in made]


def formula(q, k, v, seed, causal=False):
    """Results of torch's operators under the mask of the seed."""
    kind, (q, k, v) = (
        q.dtype,
        (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v)),
    )
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    rows, keys = scores.shape[-2:]
    if causal:
        seen = torch.ones(rows, keys, device=q.device).tril(keys - rows).bool()
        scores = scores.masked_fill(~seen, -torch.inf)
    kept = fa3.dropout_mask(P, seed, tuple(scores.shape))
    realised = round(P * 65536) / 65536
    out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1) * kept / (1 - realised), v)
    return out.to(kind)


def close(actual, expected, atol=2e-5):
    """Within atol; tensors of 16 bits within 3% of their norm, which another mask is far from."""
    if isinstance(actual, torch.Tensor):
        actual, expected = [actual], [expected]
    for a, b in zip(actual, expected, strict=True):
        if a.dtype == torch.bfloat16 and atol > 0:
            assert (a.float() - b.float()).norm() < 0.03 * b.float().norm()
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


def drawn(seed=4, device="cpu"):
    """What a call draws after torch.manual_seed(seed)."""
    return dropout.draw(device, torch.Generator(device).manual_seed(seed))


def test_autograd_equals_the_formula_under_the_mask(device):
    tensors = qkv(device=device)
    torch.manual_seed(4)
    out = fa3.attention(*tensors, dropout_p=P, causal=True)
    expected = formula(*tensors, drawn(device=device), causal=True)
    close(out, expected)
    do = torch.randn_like(out)
    gradients = [torch.autograd.grad(x, tensors, do) for x in (out, expected)]
    close(*gradients)


def test_float64_passes_gradcheck():
    tensors = [x[:1, :3, :2, :2].detach().double().requires_grad_() for x in qkv()]
    assert torch.autograd.gradcheck(
        lambda *x: fa3.attention(*x, dropout_p=P, dropout_seed=SEED), tensors
    )
    single = fa3.attention(*(x.float() for x in tensors), dropout_p=P, dropout_seed=SEED)
    close(fa3.attention(*tensors, dropout_p=P, dropout_seed=SEED), single.double())


def test_float64_divides_by_what_is_kept_in_float64():
    values = torch.ones(1, 64, 1, 1, dtype=torch.float64)
    out = fa3.attention(values, values, values, dropout_p=0.1, dropout_seed=SEED)
    keep = fa3.dropout_mask(0.1, SEED, (1, 1, 64, 64)).double()
    exact = keep.mean(-1) * 2**16 / (2**16 - round(0.1 * 2**16))
    assert torch.allclose(out.flatten(), exact.flatten(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("origin", [(1, 0, 0, 0), (0, 3, 0, 0), (0, 0, 16, 0), (0, 0, 0, 64)])
def test_float64_refuses_a_mask_that_begins_elsewhere(origin):
    x = torch.ones(1, 4, 2, 8, dtype=torch.float64)
    with pytest.raises(fa3.Unsupported, match="dropout_origin: not with float64"):
        fa3.attention(x, x, x, dropout_p=P, dropout_seed=SEED, dropout_origin=origin)


def test_a_given_generator_gives_the_seed_and_no_other_advances(device):
    tensors = qkv(device=device)
    state = torch.cuda.get_rng_state if device == "cuda" else torch.get_rng_state
    mine, default = torch.Generator(device).manual_seed(4), state()
    out = fa3.attention(*tensors, dropout_p=P, generator=mine)
    assert torch.equal(state(), default)
    seed = drawn(device=device)
    assert torch.equal(out, fa3.attention(*tensors, dropout_p=P, dropout_seed=seed))
    assert not torch.equal(out, fa3.attention(*tensors, dropout_p=P, generator=mine))


def test_a_call_without_dropout_draws_nothing():
    before = torch.get_rng_state()
    for p in (0, 0.0, None):
        fa3.attention(*qkv_without_drawing(), dropout_p=p)
    assert torch.equal(torch.get_rng_state(), before)
    fa3.attention(*qkv_without_drawing(), dropout_p=P)
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("number", [np.float32, np.array, torch.tensor])
def test_a_probability_of_any_kind_draws_its_mask(number, device):
    """float32 of NumPy is no Python float: a schedule's dropout had one mask in every call."""
    tensors = qkv(device=device)
    p = number(0.25)
    torch.manual_seed(4)
    out = fa3.attention(*tensors, dropout_p=p)
    assert not torch.equal(fa3.attention(*tensors, dropout_p=p), out)
    torch.manual_seed(4)
    assert torch.equal(fa3.attention(*tensors, dropout_p=0.25), out)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("compiled", [False, True])
def test_vmaps_randomness_says_whether_calls_share_a_mask(compiled):
    q, k, v = (x.detach() for x in qkv())
    heads = torch.stack([q, q, q])

    def call(randomness):
        function = torch.vmap(lambda x: fa3.attention(x, k, v, dropout_p=P), randomness=randomness)
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager") if compiled else function

    same, different = call("same")(heads), call("different")(heads)
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    assert not any(torch.equal(different[n], different[n - 1]) for n in range(3))
    with pytest.raises(RuntimeError, match="randomness error mode"):
        call("error")(heads)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_for_each_sample_have_the_masks_of_their_samples():
    q, k, v = (x.detach() for x in qkv())
    linear = torch.func.grad_and_value(lambda x: fa3.attention(q, k, x, dropout_p=P).sum())
    gradients, sums = torch.vmap(linear, randomness="different")(torch.stack([v, v]))
    assert not torch.equal(*gradients)
    close((gradients * v).sum((1, 2, 3, 4)), sums, atol=1e-3)


def qkv_without_drawing():
    return [torch.ones(1, 4, 2, 8) for _ in range(3)]


def test_a_pair_of_integers_is_the_tensor_of_them():
    tensors = qkv()
    pair = fa3.attention(*tensors, dropout_p=P, dropout_seed=tuple(SEED.tolist()))
    assert torch.equal(pair, fa3.attention(*tensors, dropout_p=P, dropout_seed=SEED))
    numpy = [x.detach().numpy() for x in tensors]
    there = fa3.attention(*numpy, dropout_p=P, dropout_seed=tuple(SEED.tolist()))
    assert torch.equal(pair, torch.from_numpy(there))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_draws_no_other_mask_from_a_given_generator(reentrant, device):
    """torch gives back the state of its own generators alone before it computes again."""
    mine = torch.Generator(device).manual_seed(4)

    def call(*tensors):
        return fa3.attention(*tensors, dropout_p=P, generator=mine)

    out = checkpoint(call, *qkv(device=device), use_reentrant=reentrant)
    with pytest.raises(fa3.Unsupported, match="^generator: .*; pass dropout_seed"):
        out.sum().backward()


@pytest.mark.parametrize("run", ["forward", "backward"])
def test_an_operator_without_a_seed_is_refused(run):
    q, k, v = (x.detach() for x in qkv())
    out, lse = torch.ops.fa3.forward(q, k, v)
    given = (q, k, v) if run == "forward" else (out, q, k, v, out, lse)
    with pytest.raises(fa3.InvalidArgument, match="^dropout_seed: expected"):
        getattr(torch.ops.fa3, run)(*given, dropout_p=P)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_the_same_mask(reentrant, device):
    q, k, v = qkv(device=device)

    def attend(q):
        return fa3.attention(q, k, v, dropout_p=P)

    results = []
    for run in (attend, lambda q: checkpoint(attend, q, use_reentrant=reentrant)):
        torch.manual_seed(5)
        out = run(q)
        q.grad = None
        out.square().sum().backward()
        results.append((out, q.grad))
    close(*results, atol=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_training_draws_a_new_mask_each_call(backend):
    tensors = qkv()
    torch._dynamo.reset()

    def step(q, k, v, seed=None):
        return fa3.attention(q, k, v, dropout_p=P, dropout_seed=seed, causal=True)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    out = compiled(*tensors)
    assert not torch.equal(out, compiled(*tensors))
    *_, v = tensors
    do = torch.randn_like(out)
    (dv,) = torch.autograd.grad(out, v, do)
    close((v * dv).sum(), (out * do).sum(), 1e-3)  # out is linear in v, under one mask
    given = compiled(*tensors, SEED)
    expected = formula(*tensors, SEED, causal=True)
    close(given, expected)
    gradients = [torch.autograd.grad(x.square().sum(), tensors) for x in (given, expected)]
    close(*gradients, atol=1e-4)


def layers(x, seed=None):
    """Three attentions with dropout, each of the one before, and something to save beside them."""
    for _ in range(3):
        x = x + fa3.attention(x.sin(), x.cos(), x, dropout_p=P, dropout_seed=seed).tanh()
    return x.square().sum()


def gradient_of(program, x, **budget):
    torch.manual_seed(4)
    with torch._functorch.config.patch(**budget):
        return torch.autograd.grad(program(x), x)[0]


@pytest.mark.parametrize("budget", [0.5, 0.1, 0.01])
def test_a_memory_budget_draws_no_other_mask_in_the_backward(budget):
    x = torch.randn(2, 64, 2, 16, requires_grad=True)
    expected = gradient_of(layers, x)
    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager_decomp_partition")
    close(gradient_of(compiled, x, activation_memory_budget=budget), expected, 1e-4)


def test_a_memory_budget_of_nothing_takes_seeds_alone():
    x = torch.randn(2, 64, 2, 16, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager_decomp_partition")
    with pytest.raises(Exception, match="dropout_seed: expected a tensor"):
        gradient_of(compiled, x, activation_memory_budget=0)

    def with_seed(x):
        return layers(x, SEED)

    compiled = torch.compile(with_seed, fullgraph=True, backend="aot_eager_decomp_partition")
    expected = gradient_of(with_seed, x)
    close(gradient_of(compiled, x, activation_memory_budget=0), expected, 1e-4)


def test_seeds_of_integers_are_part_of_a_compiled_program():
    tensors = qkv()
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(q, k, v, seed):
        return fa3.attention(q, k, v, dropout_p=P, dropout_seed=seed)

    for seed in ((123, -7), (124, -7), (125, -7), (2**63 + 5, 2**64 - 1)):
        words = dropout.from_pair(seed, "cpu")
        close(program(*tensors, seed), formula(*tensors, words))


def test_the_operators_pass_torchs_own_check():
    named = {"dropout_p": P, "dropout_seed": SEED, "causal": True}
    torch.library.opcheck(torch.ops.fa3.forward.default, tuple(qkv()), named)


REFUSED = [
    ({"dropout_seed": torch.zeros(2)}, "dropout_seed: expected .*int64 tensor"),
    ({"dropout_seed": torch.zeros(3, dtype=torch.int64)}, "dropout_seed: expected .*int64 tensor"),
    ({"dropout_seed": "ab"}, "dropout_seed: expected .* got 'ab'"),
    (
        {"dropout_seed": torch.zeros(2, dtype=torch.int64, device="meta")},
        "dropout_seed: expected it on cpu, as q is, got meta",
    ),
    ({"dropout_seed": SEED, "generator": torch.Generator()}, "generator: .* got both"),
    ({"dropout_p": float("nan")}, "dropout_p: expected a probability from 0 to 1, got nan"),
]


@pytest.mark.parametrize("change, words", REFUSED, ids=[words for _, words in REFUSED])
def test_a_wrong_argument_is_named(change, words):
    with pytest.raises(fa3.InvalidArgument, match=words):
        fa3.attention(*qkv(), **{"dropout_p": P, **change})


def test_a_cuda_graph_draws_anew_each_time():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    tensors = [x.detach() for x in qkv(device="cuda")]
    fa3.attention(*tensors, dropout_p=P)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa3.attention(*tensors, dropout_p=P)
    results = []
    for _ in range(3):
        graph.replay()
        results.append(out.clone())
    assert all(x.isfinite().all() for x in results)
    assert not any(torch.equal(results[0], x) for x in results[1:])


@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_runs_fa3(causal, device):
    tensors = qkv(heads_k=4, keys=23, device=device)
    switch.warned.clear()
    with fa3.torch.sdpa():
        torch.manual_seed(4)
        swapped = [x.transpose(1, 2) for x in tensors]
        out = F.scaled_dot_product_attention(*swapped, dropout_p=P, is_causal=causal)
        torch.manual_seed(4)
        seed = drawn() if device == "cpu" else aten_dropout.drawn_state(device)
        expected = formula(*tensors, seed, causal=causal)
        gradients = [torch.autograd.grad(x.square().sum(), tensors) for x in (out, expected)]
    assert not switch.warned
    close(out.transpose(1, 2), expected)
    close(*gradients, atol=1e-4)
    if device == "cpu":  # where a call with dropout is another node of the graph
        before = F.scaled_dot_product_attention(*swapped, dropout_p=P)
        assert before.grad_fn.name() != out.grad_fn.name()  # torch's own again


def test_sdpa_leaves_what_fa3_has_not_to_torch():
    tensors = [x.transpose(1, 2) for x in qkv(heads_k=4, keys=23)]
    mask = torch.linspace(0, 1, 23 * 23).view(23, 23)  # more than hidden keys
    switch.warned.clear()
    torch.manual_seed(4)
    with fa3.torch.sdpa(), pytest.warns(UserWarning, match="attn_mask of other numbers"):
        out = F.scaled_dot_product_attention(*tensors, dropout_p=P, attn_mask=mask)
    torch.manual_seed(4)
    close(out, F.scaled_dot_product_attention(*tensors, dropout_p=P, attn_mask=mask), atol=0)


def test_sdpa_with_a_mask_compiles():
    """Whether a mask only hides keys is no question to a compiler's tensors."""
    tensors = [x.transpose(1, 2) for x in qkv(heads_k=4, keys=23)]
    mask = torch.ones(23, 23, dtype=torch.bool).tril()

    def call(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=P, attn_mask=mask)

    switch.warned.clear()
    torch._dynamo.reset()
    with fa3.torch.sdpa(), pytest.warns(UserWarning, match="attn_mask in a compiled program"):
        out = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
    weight = torch.randn_like(out)
    (gradient,) = torch.autograd.grad((out * weight).sum(), tensors[2])
    close((gradient * tensors[2]).sum(), (out * weight).sum(), atol=1e-3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["flash", "cudnn"])
def test_kernels_of_cuda_give_the_seed_to_their_backward(monkeypatch, family, packed):
    """Here on the CPU's tensors."""
    tensors = [x.detach() for x in qkv(heads_k=4, keys=23)]
    seed = dropout.draw("cpu")
    monkeypatch.setattr(aten_dropout, "drawn_state", lambda device: seed)
    if packed:
        name = f"_{family}_attention"
        starts = torch.tensor([0, 23, 46], dtype=torch.int32)
        named = {"cum_seq_q": starts, "cum_seq_k": starts, "max_q": 23, "max_k": 23}
        given = [x.flatten(0, 1) for x in tensors]
    else:
        name = f"_scaled_dot_product_{family}_attention"
        named, given = {}, [x.transpose(1, 2) for x in tensors]
    ends = "_forward" if packed else "", "_backward"
    kernels = aten_kernels.KERNELS | aten_kernels.BACKWARDS
    forward, backward = (kernels[name + end][1] for end in ends)
    named |= {"is_causal": False, "scale": None, "dropout_p": P}
    more = {"attn_bias": None, "compute_log_sumexp": True} if family == "cudnn" else {}
    qkv_named = dict(zip(("query", "key", "value"), given, strict=True))
    results = forward(**qkv_named, **named, return_debug_mask=False, **more)
    out, lse, state, offset = results[0], results[1], *results[-3:-1]
    saved = {"philox_seed": state, "philox_offset": offset}
    if packed and family == "flash":
        saved = {"rng_state": state, "unused": offset}
    more.pop("compute_log_sumexp", None)
    gradients = backward(
        **qkv_named, **named, **saved, **more, grad_out=out, out=out, logsumexp=lse
    )
    tensors = [x.requires_grad_() for x in tensors]
    expected = formula(*tensors, seed)
    close(out.unflatten(0, (2, 23)) if packed else out.transpose(1, 2), expected)
    wanted = torch.autograd.grad(expected, tensors, expected.detach())
    wanted = [x.flatten(0, 1) if packed else x.transpose(1, 2) for x in wanted]
    close(list(gradients), wanted, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_flash_attn_2_returns_signed_weights(packed, device):
    tensors = qkv(device=device)
    given, form, lengths = tensors, fa2.flash_attn_func, ()
    if packed:
        starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (23, 31)]
        given, form = [x.flatten(0, 1) for x in tensors], fa2.flash_attn_varlen_func
        lengths = (*starts, 23, 31)
    torch.manual_seed(4)
    out, lse, signed = form(*given, *lengths, P, causal=True, return_attn_probs=True)
    expected = formula(*tensors, drawn(device=device), causal=True)
    close(out.view_as(expected), expected)
    assert signed.shape == (2, 4, 128, 128)
    _, expected_lse = fa3.attention(*tensors, causal=True, return_lse=True)
    close(lse if not packed else lse.unflatten(1, (2, 23)).transpose(0, 1), expected_lse)
    visible = torch.ones(23, 31, device=device).tril(8).bool()
    kept = fa3.dropout_mask(P, drawn(device=device), (2, 4, 23, 31))
    weights = signed[..., :23, :31]
    assert torch.equal((weights >= 0)[..., visible], kept[..., visible])
    assert not weights[..., ~visible].any() and not signed[..., 23:, :].any()
    assert torch.equal(weights.abs().amax(-1), torch.ones_like(weights[..., 0]))
    q, k, _ = (x.detach().float() for x in tensors)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / 4
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    found = weights.abs().float()
    close(found / found.sum(-1, keepdim=True), expected, 1e-5 if device == "cpu" else 4e-3)


def test_private_passes_of_flash_attn_2_agree_on_the_state():
    tensors = qkv()
    plain = [x.detach() for x in tensors]
    common = (plain[0].shape[-1] ** -0.5, False, -1, -1, 0.0, None)
    out, lse, _, state = fa2._flash_attn_forward(*plain, P, *common, False)
    expected = formula(*tensors, state)
    close(out, expected)
    gradients = [torch.empty_like(x) for x in plain]
    fa2._flash_attn_backward(out, *plain, out, lse, *gradients, P, *common, False, state)
    close(gradients, list(torch.autograd.grad(expected, tensors, expected.detach())), 1e-4)
    with pytest.raises(fa3.InvalidArgument, match="rng_state: expected the forward's"):
        fa2._flash_attn_backward(out, *plain, out, lse, *gradients, P, *common, False)
