# SPDX-License-Identifier: Apache-2.0
"""flash_attn's private functions and bert_padding: signatures as recorded, calls as callers make
them, results as fa3's."""

import inspect
import os
import subprocess
import sys

import pytest
from checks import signature_of

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import _registry, bert_padding, flash_attn_2_cuda  # noqa: E402
from fa3.compat import flash_attn as fa2_names  # noqa: E402
from fa3.compat import flash_attn_interface as fa3_names  # noqa: E402

# From hopper/flash_attn_interface.py and flash_attn/flash_attn_interface.py of flash-attention, as
# of November 2026, without annotations. What fa3 adds comes behind a star.
PACKED = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
GRADIENTS = "dout, q, k, v, out, softmax_lse, dq, dk, dv, "
WINDOW = "window_size_left, window_size_right, "
OPEN_WINDOW = "window_size_left=-1, window_size_right=-1, "
RECORDED = {
    (fa2_names, "_flash_attn_forward"): f"q, k, v, dropout_p, softmax_scale, causal, {WINDOW}"
    "softcap, alibi_slopes, return_softmax",
    (fa2_names, "_flash_attn_varlen_forward"): f"q, k, v, {PACKED}dropout_p, softmax_scale, "
    f"causal, {OPEN_WINDOW}softcap=0.0, alibi_slopes=None, return_softmax=False, "
    "block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False, num_splits=0",
    (fa2_names, "_flash_attn_backward"): f"{GRADIENTS}dropout_p, softmax_scale, causal, {WINDOW}"
    "softcap, alibi_slopes, deterministic, rng_state=None",
    (fa2_names, "_flash_attn_varlen_backward"): f"{GRADIENTS}{PACKED}dropout_p, softmax_scale, "
    f"causal, {WINDOW}softcap, alibi_slopes, deterministic, rng_state=None, zero_tensors=False",
    (fa3_names, "_flash_attn_forward"): "q, k, v, k_new=None, v_new=None, qv=None, out_=None, "
    "cu_seqlens_q=None, cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None, "
    "seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None, kv_batch_idx=None, "
    "leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None, "
    f"k_descale=None, v_descale=None, softmax_scale=None, causal=False, {OPEN_WINDOW}"
    "attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, "
    "num_splits=1, pack_gqa=None, sm_margin=0",
    (fa3_names, "_flash_attn_backward"): "dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, "
    "cu_seqlens_k=None, sequed_q=None, sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, "
    f"dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False, {OPEN_WINDOW}softcap=0.0, "
    "deterministic=False, sm_margin=0",
}
SHAPES = (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16)
REPEATABLE = {"causal": True, "window": (5, -1), "softcap": 3.0, "deterministic": True}


@pytest.mark.parametrize("module, name", RECORDED, ids=lambda x: getattr(x, "__name__", x))
def test_signature_begins_with_the_recorded_one(module, name):
    signature = signature_of(getattr(module, name)).partition(", *, ")[0].strip("()")
    assert signature == RECORDED[module, name]


@pytest.mark.parametrize("name", [n for m, n in RECORDED if m is fa2_names])
def test_wrapped_names_are_the_same_functions(name):
    assert getattr(fa2_names, f"_wrapped{name}") is getattr(fa2_names, name)


def tensors(device, *shapes):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def expected_of(qkv, do, **options):
    """((out, lse), (dq, dk, dv))"""
    leaves = [x.detach().requires_grad_() for x in qkv]
    out, lse = fa3.attention(*leaves, return_lse=True, **options)
    return (out.detach(), lse.detach()), torch.autograd.grad(out, leaves, do)


@pytest.fixture
def dense(device):
    *qkv, do = tensors(device, *SHAPES, SHAPES[0])
    return qkv, do, *expected_of(qkv, do, **REPEATABLE)


@pytest.fixture
def packed(device):
    """Two sequences of 4 and 7 queries with 9 and 3 keys."""
    *qkv, do = tensors(device, (11, 4, 16), (12, 2, 16), (12, 2, 16), (11, 4, 16))
    cu = [torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 4, 11], [0, 9, 12])]
    lengths = (*cu, 7, 9)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    options = REPEATABLE | dict(zip(names, lengths, strict=True))
    return qkv, lengths, do, *expected_of(qkv, do, **options)


def unwritten(qkv):
    return [torch.full_like(x, torch.nan) for x in qkv]


def test_fa2_passes(dense):
    qkv, do, results, gradients = dense
    out, lse, probabilities, rng_state = fa2_names._flash_attn_forward(
        *qkv, 0.0, 0.25, True, 5, -1, 3.0, None, False
    )
    same((out, lse), results)
    assert probabilities.numel() == 0 and rng_state.dtype == torch.int64
    into = unwritten(qkv)
    fa2_names._flash_attn_backward(
        do, *qkv, out, lse, *into, 0.0, 0.25, True, 5, -1, 3.0, None, True, rng_state=rng_state
    )
    same(into, list(gradients))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_fa2_passes_of_packed_sequences(packed, integer):
    qkv, lengths, do, results, gradients = packed
    lengths = [x.to(integer) if isinstance(x, torch.Tensor) else x for x in lengths]
    out, lse, *_ = fa2_names._flash_attn_varlen_forward(
        *qkv, *lengths, 0.0, 0.25, True, 5, None, 3.0
    )
    same((out, lse), results)
    into = unwritten(qkv)
    fa2_names._flash_attn_varlen_backward(
        do, *qkv, out, lse, *into, *lengths, 0.0, 0.25, True, 5, -1, 3.0, None, True
    )
    same(into, list(gradients))


def test_fa3_backward_leaves_sms_free(dense):
    qkv, do, results, gradients = dense
    into = unwritten(qkv)
    options = {"is_causal": True, "softcap": 3.0, "window_size_left": 5, "deterministic": True}
    options |= dict(zip(("dq", "dk", "dv"), into, strict=True))
    fa3_names._flash_attn_backward(do, *qkv, *results, sm_margin=3, **options)
    same(into, list(gradients))
    with pytest.raises(fa3.InvalidArgument, match="sm_margin: expected 0 to 1023 SMs, got -3"):
        fa3_names._flash_attn_backward(do, *qkv, *results, sm_margin=-3, **options)


def test_fa3_passes_as_transformer_engine_calls_them(dense, packed):
    qkv, do, results, gradients = dense
    window = {"window_size_left": 5, "window_size_right": -1}
    options = {"softmax_scale": 0.25, "softcap": 3.0, **window}
    out, lse, *rest = fa3_names._flash_attn_forward(
        *qkv, *[None] * 9, 9, 12, *[None] * 9, causal=True, **options
    )
    same((out, lse), results)
    assert [x.numel() for x in rest] == [0, 0]
    into = unwritten(qkv)
    backward = {"is_causal": True, "deterministic": True, **options}
    fa3_names._flash_attn_backward(do, *qkv, out, lse, *[None] * 4, 9, 12, *into, **backward)
    same(into, list(gradients))

    qkv, (cu_q, cu_k, *longest), do, results, gradients = packed
    out, lse, *_ = fa3_names._flash_attn_forward(
        *qkv, *[None] * 4, cu_q, cu_k, *[None] * 3, *longest, *[None] * 9, causal=True, **options
    )
    same((out, lse), results)
    into = unwritten(qkv)
    fa3_names._flash_attn_backward(
        do, *qkv, out, lse, cu_q, cu_k, None, None, *longest, *into, **backward
    )
    same(into, list(gradients))


def test_transformer_engine_s_gaps_between_sequences_stay_zero(device):
    """pad_between_seqs: offsets of the padded layout, lengths in seqused, gradients over zeros."""
    *qkv, do = tensors(device, *[(12, 2, 16)] * 4)
    cu = torch.tensor([0, 6, 12], dtype=torch.int32, device=device)
    used = torch.tensor([4, 6], dtype=torch.int32, device=device)
    out, lse, *_ = fa3_names._flash_attn_forward(
        *qkv, *[None] * 4, cu, cu, None, used, used, 6, 6, *[None] * 9, causal=True
    )
    into = [torch.zeros_like(x) for x in qkv]
    fa3_names._flash_attn_backward(
        do, *qkv, out, lse, cu, cu, used, used, 6, 6, *into, is_causal=True, deterministic=True
    )
    for rows in (slice(0, 4), slice(6, 12)):
        _, gradients = expected_of(
            [x[None, rows] for x in qkv], do[None, rows], causal=True, deterministic=True
        )
        same([x[None, rows] for x in into], list(gradients))
    assert all(x[4:6].count_nonzero() == 0 for x in into)


def test_fa3_forward_as_megatron_calls_it(device):
    """By the names that the signature has, pages and used lengths among them."""
    q, k, v = tensors(device, (5, 4, 16), (6, 16, 2, 16), (6, 16, 2, 16))
    pages = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32, device=device)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    used = torch.tensor([20, 31], dtype=torch.int32, device=device)
    candidates = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu, "seqused_k": used}
    candidates |= {"max_seqlen_q": 3, "max_seqlen_k": 32, "page_table": pages, "causal": True}
    candidates |= {"window_size": (-1, -1), "window_size_left": -1, "window_size_right": -1}
    candidates |= {"out": None, "out_": None, "num_splits": 0, "softmax_scale": 0.3, "other": 1}
    assert inspect.isfunction(fa3_names._flash_attn_forward)
    known = inspect.signature(fa3_names._flash_attn_forward).parameters
    out, *others = fa3_names._flash_attn_forward(
        **{name: value for name, value in candidates.items() if name in known}
    )
    (lse,) = [x for x in others if x.dim() == 2 and x.shape[0] == q.shape[-2]]
    named = {"cu_seqlens_q": cu, "seqused_k": used, "page_table": pages, "max_seqlen_q": 3}
    same((out, lse), fa3.attention(q, k, v, causal=True, scale=0.3, return_lse=True, **named))


def test_fa3_passes_in_the_form_of_2025(dense):
    """As yunchang and FlashAttention-3's test of determinism call them."""
    qkv, do, results, gradients = dense
    options = {"softmax_scale": 0.25, "causal": True, "window_size": (5, -1), "softcap": 3.0}
    out, lse, *_ = fa3_names._flash_attn_forward(*qkv, out=None, attention_chunk=None, **options)
    same((out, lse), results)
    *made, softmax_d = fa3_names._flash_attn_backward(
        do, *qkv, out, lse, deterministic=True, **options
    )
    same(made, list(gradients))
    assert softmax_d.numel() == 0


def test_fa3_forward_appends_and_writes_into_out(device):
    q, *caches, k, v = tensors(
        device, (2, 3, 4, 16), (2, 20, 2, 16), (2, 20, 2, 16), (2, 3, 2, 16), (2, 3, 2, 16)
    )
    used = torch.tensor([5, 11], dtype=torch.int32, device=device)
    angles = torch.rand(20, 8, device=device)
    rotary = {"rotary_cos": angles.cos().to(q.dtype), "rotary_sin": angles.sin().to(q.dtype)}
    ours, theirs = ([x.clone() for x in caches] for _ in range(2))
    out = torch.empty_like(q)
    given, lse, *_ = fa3_names._flash_attn_forward(
        q, *ours, k, v, out_=out, seqused_k=used, causal=True, **rotary
    )
    assert given is out
    expected = fa3_names.flash_attn_with_kvcache(
        q, *theirs, k, v, cache_seqlens=used, causal=True, return_softmax_lse=True, **rotary
    )
    same((out, lse), expected)
    same(ours, theirs)
    again = torch.empty_like(q)
    fa3_names._flash_attn_forward(q, *ours, out_=again, seqused_k=used + 3, causal=True)
    same(again, fa3.attention(q, *ours, seqused_k=used + 3, causal=True))


def test_what_is_strided_or_none_is_accepted_as_in_the_originals(device):
    wide = tensors(device, *[(*shape[:-1], 2 * shape[-1]) for shape in SHAPES])
    strided = [x[..., ::2] for x in wide]
    expected = fa3.attention(*(x.contiguous() for x in strided), causal=True)
    none = {"causal": True, "softcap": None, "window_size": (None, None)}
    same(fa2_names.flash_attn_func(*strided, **none), expected)
    same(fa3_names.flash_attn_func(*strided, attention_chunk=None, **none), expected)
    same(fa3_names._flash_attn_forward(*strided, causal=True)[0], expected)
    q, *caches = strided[0], *(x.contiguous() for x in strided[1:])
    for module in (fa2_names, fa3_names):
        same(module.flash_attn_with_kvcache(q, *caches, **none), expected)


@pytest.mark.parametrize("module", [fa2_names, fa3_names], ids=["fa2", "fa3"])
def test_offsets_in_64_bits_are_accepted(packed, module):
    qkv, (*cu, longest_q, longest_k), _, _, _ = packed
    expected = module.flash_attn_varlen_func(*qkv, *cu, longest_q, longest_k)
    wide = [x.long() for x in cu]
    same(module.flash_attn_varlen_func(*qkv, *wide, longest_q, longest_k), expected)


@pytest.mark.parametrize("sink_type", [torch.float32, torch.bfloat16])
def test_sinks_pass_through_the_functions_that_transformers_inspects(device, sink_type):
    q, k, v = tensors(device, *SHAPES)
    sink = torch.randn(4, device=device).to(sink_type).requires_grad_()
    expected = fa3.attention(q, k, v, sink=sink.float())
    assert not torch.equal(expected, fa3.attention(q, k, v))
    out = fa3_names.flash_attn_func(q, k, v, s_aux=sink)
    same(out, expected)
    assert torch.autograd.grad(out.sum(), sink)[0].dtype == sink_type
    same(fa3_names.flash_attn_with_kvcache(q, k, v, s_aux=sink.detach()), expected.detach())
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    cu = [torch.arange(0, 3 * s, s, dtype=torch.int32, device=device) for s in (9, 12)]
    packed_out = fa3_names.flash_attn_varlen_func(*flat, *cu, 9, 12, s_aux=sink)
    same(packed_out.view_as(expected), expected)


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda q: fa2_names._flash_attn_forward(
                q, q, q, 0.0, *DEFAULT[:-2], torch.ones(2), False
            ),
            "alibi_slopes: .*tensor",
        ),
        (
            lambda q: fa3_names._flash_attn_forward(q, q, q, q, q, seqused_q=torch.ones(2)),
            "seqused_q: .*not where k_new is appended",
        ),
        (lambda q: flash_attn_2_cuda.varlen_bwd(q), "flash_attn_2_cuda.varlen_bwd: .*interface"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_fa3_lacks_is_refused_by_name(call, words):
    with pytest.raises(fa3.Unsupported, match=words):
        call(torch.ones(2, 3, 2, 8))


DEFAULT = (None, False, -1, -1, 0.0, None, False)


def test_e5m2_is_refused():
    q = torch.ones(1, 4, 2, 16).to(torch.float8_e5m2)
    with pytest.raises(fa3.InvalidArgument, match="q: expected .* got float8_e5m2"):
        fa3_names._flash_attn_forward(q, q, q)


def test_passes_are_traced_whole(dense):
    qkv, do, results, gradients = dense

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v, do):
        out, lse, *_ = fa2_names._flash_attn_forward(q, k, v, 0.0, 0.25, True, 5, -1, 3.0, None, 0)
        into = [torch.empty_like(x) for x in (q, k, v)]
        mask = 0.25, True, 5, -1, 3.0, None, True
        fa2_names._flash_attn_backward(do, q, k, v, out, lse, *into, 0.0, *mask)
        return (out, lse), into

    same(step(*qkv, do), (results, list(gradients)))


def test_operators_of_fa3_are_the_functions(dense):
    qkv, do, results, gradients = dense
    operators = torch.ops.flash_attn_3
    mask = {"softmax_scale": 0.25, "is_causal": True, "window_size_left": 5, "softcap": 3.0}
    out, lse, *_ = operators.fwd(*qkv, **mask)
    same((out, lse), results)
    into = unwritten(qkv)
    operators.bwd(do, *qkv, out, lse, *into, deterministic=True, **mask)
    same(into, list(gradients))
    made = operators.bwd(do, *qkv, out, lse, deterministic=True, **mask)
    same(list(made[:3]), list(gradients))
    out_partial, lse_partial = out.float()[None], lse.transpose(1, 2)[None]
    same(operators.fwd_combine(out_partial, lse_partial)[0], out.float())
    sizes = (2, 9, 12, 4, 2, 16, 16, torch.bfloat16)
    assert operators.get_scheduler_metadata(*sizes, lse).numel() == 0


def test_operators_have_defaults_of_their_own(device):
    """Rotary pairs are halves by default there, and interleaved in the function."""
    q, *caches, new = tensors(device, (1, 1, 2, 16), (1, 9, 2, 16), (1, 9, 2, 16), (1, 1, 2, 16))
    angles = torch.rand(9, 8, device=device)
    rotary = {"rotary_cos": angles.cos().to(q.dtype), "rotary_sin": angles.sin().to(q.dtype)}
    used = torch.tensor([4], dtype=torch.int32, device=device)
    outs = []
    for call, how in (
        (torch.ops.flash_attn_3.fwd, {}),
        (fa3_names._flash_attn_forward, {"rotary_interleaved": False}),
        (fa3_names._flash_attn_forward, {}),
    ):
        copies = [x.clone() for x in caches]
        outs.append(call(q, *copies, new, new, seqused_k=used, **rotary, **how)[0])
    same(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_operators_leave_the_name_to_an_installed_original(tmp_path):
    package = tmp_path / "flash_attn_3"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_C.py").touch()
    ask = "import torch, fa3.compat.flash_attn_interface as x; print(x.library)"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ask],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.stdout == "None\n", done.stderr
    assert fa3_names.library is not None or _registry.original_is_installed()


def test_bert_padding_packs_and_pads_with_gradients(device):
    hidden = torch.randn(3, 5, 2, 4, device=device, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]], device=device)
    rows, indices, cu_seqlens, longest, used = bert_padding.unpad_input(hidden, mask)
    same(rows, hidden[mask.bool()])
    assert (cu_seqlens.tolist(), longest, used.tolist()) == ([0, 2, 5, 10], 5, [2, 3, 5])
    assert cu_seqlens.dtype == used.dtype == torch.int32
    weight = torch.randn_like(rows)
    padded = bert_padding.pad_input(rows * weight, indices, 3, 5)
    same(
        padded, torch.zeros_like(hidden).masked_scatter(mask.bool()[..., None, None], rows * weight)
    )
    (gradient,) = torch.autograd.grad(padded.sum(), hidden)
    same(gradient[mask.bool()], weight)
    assert gradient[~mask.bool()].count_nonzero() == 0
    same(bert_padding.pad_input(rows, indices.int(), 3, 5)[mask.bool()], rows)


def test_bert_padding_keeps_unused_rows_and_parts_concatenated_sequences(device):
    hidden = torch.randn(2, 4, 3, device=device)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]], device=device)
    spare = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]], device=device)
    for kind in (torch.int64, torch.bool):
        rows, _, cu_seqlens, longest, used = bert_padding.unpad_input(
            hidden, mask.to(kind), spare.to(kind)
        )
        same(rows, torch.cat([hidden[0, :3], hidden[1, :2]]))
        assert (cu_seqlens.tolist(), longest, used.tolist()) == ([0, 3, 5], 3, [2, 1])
    lengths = torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]], device=device)
    rows, _, cu_seqlens, longest = bert_padding.unpad_input_for_concatenated_sequences(
        hidden, lengths
    )
    same(rows, torch.cat([hidden[0, :3], hidden[1]]))
    assert (cu_seqlens.tolist(), longest) == ([0, 2, 3, 7], 4)


def test_bert_padding_adds_gradients_of_rows_taken_twice(device):
    x = torch.randn(4, 3, device=device, requires_grad=True)
    taken, whole = bert_padding.index_first_axis_residual(x, torch.tensor([1, 1], device=device))
    (gradient,) = torch.autograd.grad(taken.sum() + whole.sum(), x)
    same(gradient[:, 0], torch.tensor([1.0, 3, 1, 1], device=device))
