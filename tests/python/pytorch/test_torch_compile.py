# SPDX-License-Identifier: Apache-2.0
"""Compilers, exports and transforms over every operator; devices that share a tensor; float64."""

import os
import subprocess
import sys
import warnings

import oracle
import pytest
from cases import CASES, inputs_for

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torch_tensors import tensors  # noqa: E402

from fa3 import _native  # noqa: E402
from fa3.torch import operators  # noqa: E402


@pytest.fixture
def qkv(device):
    return tensors(device, (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_numbers_that_follow_from_shapes_are_traced(qkv):
    def call(q, k, v, number):
        return fa3.attention(q, k, v, scale=number * q.shape[1] ** -0.5, softcap=5.0)

    torch._dynamo.reset()
    traced = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for number in (0.5, 0.7):
        torch.testing.assert_close(traced(*qkv, number), call(*qkv, number))


FIRST_CALL = """
import torch, fa3
x = torch.ones(1, 8, 2, 16, requires_grad=True)
def loss(x): return fa3.attention(x, x, x, causal=True).square().sum()
torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
(expected,) = torch.autograd.grad(loss(x), x)
torch.testing.assert_close(x.grad, expected)
"""


def test_a_number_in_a_tensor_breaks_the_graph_and_no_more(qkv):
    torch._dynamo.reset()
    broken = torch.compile(lambda *x: fa3.attention(*x[:3], scale=x[3]), backend="aot_eager")
    learn = [x.requires_grad_() for x in qkv]
    for number in (0.5, 0.75):
        actual = broken(*learn, torch.tensor(number))
        expected = fa3.attention(*learn, scale=number)
        assert torch.equal(actual, expected)
        gradients = [torch.autograd.grad(x.float().sum(), learn) for x in (actual, expected)]
        torch.testing.assert_close(*gradients)


def test_compiled_autograd_has_the_gradients_of_eager_calls(qkv):
    from torch._dynamo import compiled_autograd

    learn = [x.requires_grad_() for x in qkv]
    torch._dynamo.reset()
    for options in ({"scale": 0.5}, {"scale": 0.75}, {"causal": True}):
        out, lse = fa3.attention(*learn, **options, return_lse=True)
        loss = out.float().square().sum() + lse.square().sum()
        expected = torch.autograd.grad(loss, learn, retain_graph=True)
        for x in learn:
            x.grad = None
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
            loss.backward()
        torch.testing.assert_close([x.grad for x in learn], [*expected])


def test_a_program_may_begin_with_a_compiled_call_of_one_tensor():
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True, env=os.environ.copy())


SLOPES = torch.rand(4)
TORCHS = create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu")
TRANSLATED = {
    "bias": lambda x: fa3.attention(x, x, x, bias=x[0, :, 0, :9], causal=True),
    "alibi_slopes": lambda x: fa3.attention(x, x, x, alibi_slopes=SLOPES),
    "booleans": lambda x: fa3.attention(x, x, x, bias=x[0, :, 0, :9] > 0),
    "flex_attention": lambda x: fa3.flex_attention(x, x, x, score_mod=tilted),
    "block_mask": lambda x: fa3.attention(x, x, x, block_mask=TORCHS),
}


def tilted(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


@pytest.mark.parametrize("call", TRANSLATED)
def test_what_fa3_translates_breaks_the_graph_and_says_why(call):
    def loss(x):
        return TRANSLATED[call](2 * x).square().sum()

    (x,) = tensors("cpu", (2, 9, 4, 16))
    x.requires_grad_()
    with pytest.raises(Exception, match="fa3 translates score functions .* without fullgraph=True"):
        compiled(loss)(x)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        actual = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(x), x)
    # A compiler that walks through fa3 complains of what it finds.
    assert not [w for w in warned if "Dynamo" in str(w.message)]
    torch.testing.assert_close(actual, torch.autograd.grad(loss(x), x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_packed_self_attention_compiles_in_training(device, backend):
    (x,) = tensors(device, (12, 4, 16))
    cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    packing = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), cu)
    packing |= dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 7)

    def loss(x):
        return fa3.attention(x, x, x, causal=True, **packing).float().square().sum()

    x.requires_grad_()
    torch._dynamo.reset()
    actual = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend=backend)(x), x)
    # Inductor adds the three gradients of x before it rounds them.
    close = {"rtol": 0.05, "atol": 0.01} if device == "cuda" else {}
    torch.testing.assert_close(actual, torch.autograd.grad(loss(x), x), **close)


def halves(q, k, v):
    parts = [fa3.attention(q, a, b, return_lse=True) for a, b in zip(k, v, strict=True)]
    return fa3.merge(torch.stack([o.float() for o, _ in parts]), torch.stack([x for _, x in parts]))


def test_merge_compiles_in_training(qkv):
    q, k, v = (a.requires_grad_() for a in qkv)

    def loss(q, k, v):
        out, lse = halves(q, k.split(6, 1), v.split(6, 1))
        return out.square().sum() + lse.sum()

    actual = torch.autograd.grad(compiled(loss)(q, k, v), (q, k, v))
    torch.testing.assert_close(actual, torch.autograd.grad(loss(q, k, v), (q, k, v)))


def step(q, k_cache, v_cache, k, v, used, table, cos, sin):
    """One step of a decoder: append with rotation, attend."""
    places = {"page_table": table}
    how = {"rotary_cos": cos, "rotary_sin": sin, **places}
    q = fa3.append(k_cache, v_cache, k, v, seqused=used, q=q, **how)
    return fa3.attention(q, k_cache, v_cache, causal=True, seqused_k=used + k.shape[1], **places)


def a_step(device):
    q, k_cache, v_cache, k, v = tensors(
        device, (2, 3, 4, 16), (6, 8, 2, 16), (6, 8, 2, 16), (2, 3, 2, 16), (2, 3, 2, 16)
    )
    used = torch.tensor([0, 7], dtype=torch.int32, device=device)
    table = torch.tensor([[4, 1], [0, 3]], dtype=torch.int32, device=device)
    angle = torch.rand(20, 4, device=device)
    return q, k_cache, v_cache, k, v, used, table, angle.cos().to(q.dtype), angle.sin().to(q.dtype)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_step_over_a_paged_cache_compiles(device, backend):
    arguments, again = a_step(device), a_step(device)
    torch._dynamo.reset()
    actual = torch.compile(step, fullgraph=True, backend=backend)(*arguments)
    torch.testing.assert_close(actual, step(*again), rtol=0, atol=0)
    torch.testing.assert_close(arguments, again, rtol=0, atol=0)


def test_append_without_queries_compiles(device):
    _, k_cache, v_cache, k, v, used, table, *_ = a_step(device)
    caches = [a.clone() for a in (k_cache, v_cache)]

    def write(k_cache, v_cache):
        fa3.append(k_cache, v_cache, k, v, seqused=used, page_table=table)
        return k_cache.sum()

    torch.testing.assert_close(compiled(write)(k_cache, v_cache), write(*caches))
    torch.testing.assert_close([k_cache, v_cache], caches, rtol=0, atol=0)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_attention_fp8_compiles(device, packed):
    q, k, v = (a.flatten(0, 1) if packed else a for a in tensors(device, *[(2, 9, 2, 16)] * 3))
    cu = torch.tensor([0, 9, 18], dtype=torch.int32, device=device)
    packing = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 9, "max_seqlen_k": 9}

    def call(q, k, v):
        return fa3.attention_fp8(q, k, v, causal=True, **(packing if packed else {}))

    actual = compiled(call)(q, k, v)
    torch.testing.assert_close(actual, call(q, k, v), rtol=0, atol=0)


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        out, lse = fa3.attention(q, k, v, causal=True, return_lse=True)
        return fa3.merge(out.float()[None], lse[None])[0] + fa3.attention_fp8(q, k, v)


def test_a_module_exports(device, qkv):
    exported = torch.export.export(Model(), tuple(qkv))
    torch.testing.assert_close(exported.module()(*qkv), Model()(*qkv), rtol=0, atol=0)
    called = {str(node.target) for node in exported.graph.nodes}
    attends = {"fa3.forward.default", "fa3.merge.default", "fa3.quantize_together.default"}
    assert attends <= called


def test_every_operator_runs_on_meta_tensors(device):
    def on_meta(*arguments):
        return [a.to("meta") for a in arguments]

    arguments = a_step(device)
    out = step(*on_meta(*arguments))
    assert out.is_meta and out.shape == arguments[0].shape
    q = arguments[0]
    o, lse = fa3.attention(*on_meta(q, q, q), return_lse=True)
    merged = fa3.merge(o.float()[None], lse[None])
    assert [tuple(x.shape) for x in merged] == [(2, 3, 4, 16), (2, 4, 3)]
    assert fa3.attention_fp8(*on_meta(q, q, q)).shape == q.shape
    leaves = [a.requires_grad_() for a in on_meta(q, q, q)]
    fa3.attention(*leaves).sum().backward()
    assert leaves[0].grad.shape == q.shape


def test_operators_of_caches_and_parts_pass_opcheck(device):
    q, k_cache, v_cache, k, v, used, table, cos, sin = a_step(device)
    places = (None, used, table, None)
    turned = (cos, sin, None, q, None, None, None, False, False, 0)
    plain = (None, None, None, None, None, None, None, False, False, 0)
    for rest in (turned, plain):
        call = (k_cache, v_cache, k, v, *places, *rest)
        torch.library.opcheck(torch.ops.fa3.append.default, call)
    o = torch.randn(3, 2, 9, 4, 8, device=device, requires_grad=True)
    lse = torch.randn(3, 2, 4, 9, device=device, requires_grad=True)
    torch.library.opcheck(torch.ops.fa3.merge.default, (o, lse))
    torch.library.opcheck(torch.ops.fa3.quantize.default, (q,), {"center": True})


# torch.func


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_give_what_autograd_gives(qkv):
    q, k, v = qkv

    def loss(q):
        return fa3.attention(q, k, v, causal=True).float().square().sum((1, 2, 3))

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if q.dtype == torch.float32 else {}

    def close(actual):
        torch.testing.assert_close(actual, expected, **tolerance)

    close(torch.func.grad(lambda x: loss(x).sum())(q))
    results, pull = torch.func.vjp(loss, q)
    close(pull(torch.ones_like(results))[0])
    close(torch.func.jacrev(loss)(q).sum(0))
    each = torch.vmap(
        torch.func.grad(
            lambda x, k, v: (
                fa3.attention(x[None], k[None], v[None], causal=True).float().square().sum()
            )
        )
    )
    close(each(q, k, v))


# float64


@pytest.mark.parametrize("name", CASES)
def test_float64_is_the_oracle(name):
    x = inputs_for(name, "float32")
    q, k, v = (torch.tensor(a, dtype=torch.float64) for a in x[:3])
    options = dict(x.options)
    options = {n: torch.tensor(a) if hasattr(a, "dtype") else a for n, a in options.items()}
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    expected = oracle.forward(*(a.double().numpy() for a in (q, k, v)), **x.options)
    torch.testing.assert_close(out, torch.tensor(expected[0]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lse, torch.tensor(expected[1]), rtol=1e-9, atol=1e-9)


def float64_leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "softcap": 2.0, "window": (1, 2)}, {"attention_chunk": 2}],
    ids=["plain", "options", "chunks"],
)
def test_gradcheck_in_float64(options):
    leaves = float64_leaves((1, 3, 2, 4), (1, 4, 1, 4), (1, 4, 1, 3), (2,))

    def call(q, k, v, sink):
        out, lse = fa3.attention(q, k, v, sink=sink, return_lse=True, **options)
        return fa3.merge(out[None], lse[None])

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_float64_rows_without_keys_are_empty_and_have_no_gradient():
    q, k, v = float64_leaves((1, 5, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4))
    out, lse = fa3.attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :3].any() and (lse[..., :3] == -torch.inf).all()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_float64_has_no_caches_and_no_other_engine():
    q, k, v = (a.detach() for a in float64_leaves(*[(1, 4, 1, 4)] * 3))
    index = torch.zeros(1, dtype=torch.int32)
    for call in ({"batch_index": index}, {"engine": "cpu"}, {"out": torch.empty_like(q)}):
        with pytest.raises(fa3.Unsupported, match=f"^{next(iter(call))}: .*float64"):
            fa3.attention(q, k, v, **call)


# Threads


@pytest.fixture
def threads_of_torch():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_no_more_threads_than_torch_has(qkv, threads_of_torch, monkeypatch):
    asked = []

    def watched(lend, q, k, v, out, lse, *options):
        asked.append(options[operators.NUM_THREADS] if options else 0)
        return run(lend, q, k, v, out, lse, *options)

    run = _native.forward
    monkeypatch.setattr(_native, "forward", watched)
    monkeypatch.setattr(operators, "AVAILABLE_THREADS", 4)
    q, k, v = (a.cpu().float() for a in qkv)
    for limit, options, expected in ((1, {}, 1), (2, {"num_threads": 3}, 3), (8, {}, 0)):
        threads_of_torch(limit)
        fa3.attention(q, k, v, **options)
        assert asked[-1] == expected


def test_threads_of_the_library_obey_omp_num_threads():
    program = "from fa3 import _native; print(_native.available_threads())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1,2"}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment, capture_output=True).stdout.strip() == b"1"


# DTensor

SHARDED = """
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
import fa3
from torch.distributed.tensor import DeviceMesh, Partial, Replicate, Shard, distribute_tensor
mesh = DeviceMesh("cpu", [0, 1])
torch.manual_seed(0)
q, k, v = (torch.randn(2, 5, h, 8, requires_grad=True) for h in (4, 2, 2))
sink = torch.randn(4, requires_grad=True)
gate = torch.randn(2, 5, 4, requires_grad=True)
whole, largest = fa3.attention(q, k, v, causal=True, sink=sink, gate=gate, return_max_logit=True)
expected = torch.autograd.grad(whole.square().sum(), (q, k, v, gate, sink))
for placement, sinks in ((Shard(0), Replicate()), (Shard(2), Shard(0)), (Replicate(), Replicate())):
    given = q, k, v, gate
    cut = [distribute_tensor(a.detach(), mesh, [placement]).requires_grad_() for a in given]
    cut += [distribute_tensor(sink.detach(), mesh, [sinks]).requires_grad_()]
    options = {"causal": True, "gate": cut[3], "sink": cut[4]}
    out, max_logit = fa3.attention(*cut[:3], **options, return_max_logit=True)
    assert out.placements == (placement,), (placement, out.placements)
    torch.testing.assert_close(out.full_tensor(), whole)
    torch.testing.assert_close(max_logit.full_tensor(), largest)
    torch.testing.assert_close(fa3.attention(*cut[:3], **options).full_tensor(), whole)
    gradients = torch.autograd.grad(out.square().sum(), cut)
    assert all(g.placements == (placement,) for g in gradients[:4])
    for actual, exact in zip(gradients, expected):
        torch.testing.assert_close(actual.full_tensor(), exact)
# Rows are gathered: a query sees keys of every shard.
rows = [distribute_tensor(a.detach(), mesh, [Shard(1)]) for a in (q, k, v)]
gathered = fa3.attention(*rows, causal=True, gate=cut[3].detach(), sink=cut[4].detach())
torch.testing.assert_close(gathered.full_tensor(), whole)
# Three key heads on two devices: no device would get whole groups.
odd = [torch.randn(1, 5, 3, 8) for _ in range(3)]
cut = [distribute_tensor(a, mesh, [Shard(2)]) for a in odd]
torch.testing.assert_close(fa3.attention(*cut).full_tensor(), fa3.attention(*odd))
# torch hands over no option behind the last one that is given.
for name, option in (("", None), ("sink", sink), ("gate", gate)):
    given = [q, k, v] if option is None else [q, k, v, option]
    options = {} if option is None else {name: option}
    whole_of = fa3.attention(q, k, v, causal=True, **options)
    expected = torch.autograd.grad(whole_of.square().sum(), given)
    for dim in (0, 2):
        places = [Shard(dim)] * 3 + [Shard(dim) if name == "gate" else Replicate()]
        cut = [
            distribute_tensor(a.detach(), mesh, [place]).requires_grad_()
            for a, place in zip(given, places)
        ]
        options = {} if option is None else {name: cut[3]}
        out = fa3.attention(*cut[:3], causal=True, **options)
        gradients = torch.autograd.grad(out.square().sum(), cut)
        for actual, exact in zip(gradients, expected):
            torch.testing.assert_close(actual.full_tensor(), exact)
# Whatever else takes the parts says what to do.
for call in (
    lambda q, k, v: fa3.attention_fp8(q, k, v),
    lambda q, k, v: fa3.quantize(q),
    lambda q, k, v: fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i > j),
    lambda q, k, v: fa3.attention(q, k, v, alibi_slopes=torch.ones(4)),
):
    try:
        call(*cut[:3])
    except fa3.Unsupported as error:
        assert "DTensor" in str(error) and "local_map" in str(error), error
    else:
        raise AssertionError("no error")
dist.destroy_process_group()
"""


def test_attention_runs_on_shards_of_the_batch_and_of_the_heads(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch was built without torch.distributed")
    command = [sys.executable, "-c", SHARDED]
    ranks = [subprocess.Popen([*command, str(n), str(tmp_path / "store")]) for n in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
