# SPDX-License-Identifier: Apache-2.0
"""fa3.advise says where FP8 pays, precision="auto" follows it; q, k, v are quantized together."""

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
torch = pytest.importorskip("torch")

from fa3.quantization import quantize_together  # noqa: E402

TOKENS, WIDTH = 16384, 2048  # of the measurements


def advise(keys, dim, queries=None, kv_heads=None, batch=None, dtype=torch.bfloat16, **options):
    batch, heads = batch or max(TOKENS // max(keys, 1), 1), WIDTH // dim
    rows = keys if queries is None else queries
    q = torch.empty(batch, rows, heads, dim, dtype=dtype, device="meta")
    k, v = (q.new_empty(batch, keys, kv_heads or heads, dim) for _ in range(2))
    return fa3.advise(q, k, v, device="cuda", **options)


# Milliseconds of whole calls on an H200: bf16, and FP8 with its quantizer (docs/lab/fp8.md).
MEASURED = {
    (64, False, 16384): (3.413, 3.538),
    (128, False, 2048): (0.369, 0.462),
    (128, False, 8192): (1.364, 1.227),
    (128, True, 4096): (0.383, 0.451),
    (128, True, 16384): (1.335, 1.220),
    (256, False, 4096): (0.676, 0.592),
    (256, True, 1024): (0.127, 0.245),
    (256, True, 8192): (0.687, 0.597),
}


@pytest.mark.parametrize(("dim", "causal", "keys"), MEASURED)
def test_expected_times_are_the_measured_ones(dim, causal, keys):
    wide, fp8 = MEASURED[dim, causal, keys]
    advice = advise(keys, dim, causal=causal)
    assert advice.seconds == pytest.approx(1e-3 * wide, rel=0.03)
    assert advice.seconds_fp8 == pytest.approx(1e-3 * fp8, rel=ALLOWED)
    pays = advice.seconds_fp8 < MOST_OF_WIDE * advice.seconds
    assert advice.precision == ("fp8" if pays else "bfloat16")
    assert str(dim) in advice.reason and f"{keys} keys" in advice.reason


ALLOWED = 0.06  # launches of a whole call overlap, parts are measured apart
MOST_OF_WIDE = 0.90

# The same of 16 sequences of so many keys, whose calls meet the power limit (fp8-packed.jsonl).
LONG = {
    (64, False, 16384): (61, 59.9),
    (128, False, 4096): (2.73, 2.73),
    (128, False, 8192): (11.1, 10.9),
    (128, False, 16384): (44.9, 43.1),
    (128, True, 16384): (21.7, 22.2),
    (256, False, 4096): (2.71, 2.27),
    (256, True, 4096): (1.41, 1.47),
    (256, True, 8192): (5.47, 4.98),
    (256, True, 16384): (23.1, 18.4),
}


@pytest.mark.parametrize(("dim", "causal", "keys"), LONG)
def test_long_calls_are_never_slower_by_following_it(dim, causal, keys):
    wide, fp8 = LONG[dim, causal, keys]
    precision = advise(keys, dim, batch=16, causal=causal).precision
    assert {"fp8": fp8, "bfloat16": wide}[precision] <= 1.02 * wide


def test_between_measured_lengths_times_are_between():
    shorter, between, longer = (advise(keys, 128, batch=4) for keys in (4096, 6000, 8192))
    assert shorter.seconds < between.seconds < longer.seconds
    assert shorter.seconds_fp8 < between.seconds_fp8 < longer.seconds_fp8


def test_fewer_key_heads_are_quantized_sooner():
    assert advise(8192, 128, kv_heads=2).seconds_fp8 < 0.97 * advise(8192, 128).seconds_fp8


def test_a_window_counts_as_the_keys_that_it_leaves():
    assert advise(16384, 256).precision == "fp8"
    assert advise(16384, 256, window=(256, 256)).precision == "bfloat16"


def test_a_window_under_a_causal_mask_is_no_triangle():
    advice = advise(16384, 256, window=(2047, 0))
    assert "1920 keys" in advice.reason  # 2,048, but for the first rows
    assert "16384 keys" in advise(16384, 256, causal=True).reason


def block_mask(blocks):
    made = (1, 1, blocks, blocks), (1, 128, 4)
    return fa3.masks.BlockMask(*(torch.empty(s, dtype=torch.int32, device="meta") for s in made))


UNKNOWN = {
    "no keys": {"keys": 0, "queries": 1024, "batch": 4},
    "decoding": {"keys": 4096, "queries": 1, "batch": 64},
    "one short call": {"keys": 1024, "batch": 1},
    "short rows": {"keys": 512},
    "a narrow window": {"keys": 16384, "window": (0, 0)},
    "a softcap": {"keys": 16384, "softcap": 20.0},
    "other types": {"keys": 16384, "dtype": torch.float32},
    "dropout": {"keys": 16384, "dropout_p": 0.1},
    "a block mask": {"keys": 16384, "block_mask": block_mask(128)},
    "other engines": {"keys": 16384, "engine": "ampere"},
    "head dims that FP8 has not": {"keys": 16384, "dim": 100},
}


# Where FP8 cannot run at all, if this machine has an engine to ask.
CANNOT_RUN = ("other types", "dropout", "a block mask", "other engines")
CANNOT_RUN += ("head dims that FP8 has not",)


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_was_not_measured_gets_no_times(case):
    call = dict(UNKNOWN[case])
    advice = advise(call.pop("keys"), call.pop("dim", 128), **call)
    assert (advice.seconds, advice.seconds_fp8) == (0, 0)
    assert advice.precision == str(call.get("dtype", torch.bfloat16)).removeprefix("torch.")
    cannot = ("FP8 cannot run",) if case in CANNOT_RUN else ()
    assert advice.reason.startswith((*cannot, "no measurement of such a call")), advice.reason


def test_no_keys_have_scales_of_all_heads():
    q, k = (torch.zeros(2, rows, 4, 64, dtype=torch.bfloat16) for rows in (8, 0))
    assert fa3.advise(q, k, k).reason == "FP8 saves no time on a CPU"


def test_one_query_is_never_worth_quantizing_a_cache():
    assert advise(16384, 256, queries=1, batch=64).precision == "bfloat16"


def test_lengths_on_a_gpu_are_not_guessed():
    """Packed calls took longer in FP8 than in 16 bits in 43 of 45 cells (fp8-packed.jsonl)."""
    used = torch.empty(1, dtype=torch.int32, device="meta")
    packed = torch.empty(32768, 8, 256, dtype=torch.bfloat16, device="meta")
    starts, longest = torch.empty(3, dtype=torch.int32, device="meta"), 16384
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    lengths |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
    for advice in (
        advise(16384, 256, seqused_k=used),
        fa3.advise(packed, packed, packed, device="cuda", **lengths),
    ):
        assert (advice.precision, advice.seconds) == ("bfloat16", 0)


def test_memory_grows_by_the_quantized_tensors():
    q = torch.zeros(1, 128, 2, 64, dtype=torch.bfloat16)
    advice = fa3.advise(q, q, q)
    assert advice.bytes >= 4 * q.numel() * 2
    assert advice.bytes_fp8 >= 4 * q.numel() * 2 + 3 * q.numel()  # the workspace is another
    assert 10 < advice.error_fp8 / advice.error < 30


def test_auto_is_attention_where_fp8_does_not_pay():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 70, 2, 64, requires_grad=True) for _ in range(3))
    assert fa3.advise(q, k, v).precision == "float32"
    out, lse = fa3.attention_fp8(q, k, v, causal=True, precision="auto", return_lse=True)
    want, want_lse = fa3.attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    given = torch.empty_like(out)
    found = fa3.attention_fp8(*(x.detach() for x in (q, k, v)), precision="auto", out=given)
    assert found is given
    assert not torch.equal(fa3.attention_fp8(q, k, v, causal=True), want)


def test_auto_is_fp8_where_that_pays(monkeypatch):
    q, k, v = (torch.randn(1, 70, 2, 64) for _ in range(3))
    said = fa3.advise(q, k, v)._replace(precision="fp8")
    monkeypatch.setattr(fa3.fp8, "advise", lambda *_, **__: said)
    assert torch.equal(fa3.attention_fp8(q, k, v, precision="auto"), fa3.attention_fp8(q, k, v))


def test_wrong_calls_are_named(monkeypatch):
    q = torch.zeros(1, 64, 2, 64)
    with pytest.raises(fa3.InvalidArgument, match="precision: expected one of fp8, auto, got 8"):
        fa3.attention_fp8(q, q, q, precision=8)
    q8 = fa3.quantize(q).x
    with pytest.raises(fa3.InvalidArgument, match="before they are quantized"):
        fa3.advise(q8, q8, q8)
    monkeypatch.setattr(fa3.fp8, "is_compiled", lambda _: True)
    with pytest.raises(fa3.Unsupported, match="precision: expected 'fp8' in a compiled program"):
        fa3.attention_fp8(q, q, q, precision="auto")


def test_auto_takes_what_16_bits_take_and_refuses_what_fp8_refuses():
    q, k, v = torch.randn(3, 1, 70, 2, 64)
    found = fa3.attention_fp8(
        q.clone().requires_grad_(), k, v, return_max_logit=True, precision="auto"
    )
    want = fa3.attention(q, k, v, return_max_logit=True)
    assert all(map(torch.equal, found, want))
    for wrong in ({"scaling": "x"}, {"seed": "x"}, {"seed": 2**64}):
        for precision in ("fp8", "auto"):
            with pytest.raises((fa3.InvalidArgument, TypeError), match=next(iter(wrong))):
                fa3.attention_fp8(q, k, v, precision=precision, **wrong)


def test_auto_is_refused_where_nothing_can_be_asked():
    q, k, v = torch.randn(3, 1, 70, 2, 64)

    def attend(q):
        return fa3.attention_fp8(q, k, v, precision="auto").sum()

    with pytest.raises(fa3.Unsupported, match="under torch.func; ask fa3.advise"):
        torch.func.grad(attend)(q)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, pytest.raises(fa3.Unsupported, match="ask fa3.advise"):
        attend(mode.from_tensor(q))


@pytest.mark.parametrize("name", ["cu_seqlens_q", "seqused_k"])
def test_lengths_are_tensors_as_q_k_and_v_are(name):
    q, k, v = torch.randn(3, 1, 64, 2, 64)
    with pytest.raises(TypeError, match=f"{name}: expected a torch.Tensor"):
        fa3.attention_fp8(q, k, v, **{name: [3]})


LENGTHS = {
    "dense": (None, None),
    "used": (None, torch.tensor([33, 70], dtype=torch.int32)),
    "packed": (torch.tensor([0, 40, 140], dtype=torch.int32), None),
}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scaling", ["block", "head", "tensor"])
def test_quantized_together_is_quantized_one_by_one(scaling, center, lengths):
    cu, used = LENGTHS[lengths]
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 70, heads, 64).half() for heads in (4, 2, 2))
    if cu is not None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    given = {"cu_seqlens": cu, "seqused": used, "max_seqlen": 0}
    found = quantize_together(
        q, k, v, scaling=scaling, center=center, hadamard=True, seed=-3,
        lengths={"q": given, "k": given}, transposed=False,
    )  # fmt: skip
    common = {"scaling": scaling, **given}
    want = (
        fa3.quantize(q, hadamard=True, seed=-3, **common),
        fa3.quantize(k, hadamard=True, seed=-3, center=center, **common),
        fa3.quantize(v, center=center, **common),
    )
    for ours, theirs in zip(found, want, strict=True):
        assert torch.equal(ours.x.view(torch.uint8), theirs.x.view(torch.uint8))
        assert torch.equal(ours.descale, theirs.descale)
        assert (ours.mean is None) == (theirs.mean is None)
        assert ours.mean is None or torch.equal(ours.mean, theirs.mean)


def apart(found, want):
    """The share of bytes that differ, and by how many codes of e4m3 at most."""
    codes = (x.x.view(torch.uint8).int() for x in (found, want))
    ours, theirs = (torch.where(code < 128, code, 128 - code) for code in codes)
    steps = (ours - theirs).abs()
    return (steps > 0).float().mean().item(), steps.max().item()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_cuda_kernels_for_three_tensors_agree_with_those_for_one(dim, hadamard, transposed):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    torch.manual_seed(dim)
    rows = 128 if transposed else 129
    q, k, v = (torch.randn(2, rows, n, dim, device="cuda").bfloat16() + 1 for n in (4, 2, 2))
    none = {"cu_seqlens": None, "seqused": None, "max_seqlen": 0}
    found = quantize_together(
        q, k, v, scaling="block", center=True, hadamard=hadamard, seed=5,
        lengths={"q": none, "k": none}, transposed=transposed,
    )  # fmt: skip
    want = (
        fa3.quantize(q, hadamard=hadamard, seed=5),
        fa3.quantize(k, hadamard=hadamard, seed=5, center=True),
        fa3.quantize(v, center=True, transposed=transposed),
    )
    for ours, theirs in zip(found, want, strict=True):
        share, steps = apart(ours, theirs)
        assert share <= (1e-4 if hadamard else 0) and steps <= 1
        torch.testing.assert_close(ours.descale, theirs.descale, rtol=1e-6 * hadamard, atol=0)
        assert ours.mean is None or torch.equal(ours.mean, theirs.mean)


# Heads and blocks of several groups: tiles wait for means that other CTAs find. Lengths as LENGTHS.
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_cuda_kernels_for_three_tensors_wait_for_means(dim, lengths, hadamard):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    torch.manual_seed(dim)
    cu, used = (None, None)
    if lengths == "used":
        used = torch.tensor([2500, 60, 700], dtype=torch.int32, device="cuda")
    if lengths == "packed":
        cu = torch.tensor([0, 2500, 2500, 2564, 7000], dtype=torch.int32, device="cuda")
    sizes = (7100,) if lengths == "packed" else (3, 2500)
    q, k, v = (torch.randn(*sizes, n, dim, device="cuda").bfloat16() + 1 for n in (10, 5, 5))
    given = {"cu_seqlens": cu, "seqused": used, "max_seqlen": 4436 if lengths == "packed" else 0}
    found = quantize_together(
        q, k, v, scaling="block", center=True, hadamard=hadamard, seed=5,
        lengths={"q": given, "k": given}, transposed=False,
    )  # fmt: skip
    want = (
        fa3.quantize(q, hadamard=hadamard, seed=5, **given),
        fa3.quantize(k, hadamard=hadamard, seed=5, center=True, **given),
        fa3.quantize(v, center=True, **given),
    )
    for ours, theirs in zip(found, want, strict=True):
        share, steps = apart(ours, theirs)
        assert share <= (1e-4 if hadamard else 0) and steps <= 1
        torch.testing.assert_close(ours.descale, theirs.descale, rtol=1e-6 * hadamard, atol=0)
        assert ours.mean is None or torch.equal(ours.mean, theirs.mean)


# Most tasks have no rows and end at once, others wait for theirs: stages are filled out of turn.
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_cuda_kernels_for_three_tensors_pass_over_absent_rows(dim):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    torch.manual_seed(dim)
    lengths = [3000, 20, 700, 32768, *(16 * i for i in range(1, 37))]
    cu = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
    q, k, v = (torch.randn(sum(lengths), 8, dim, device="cuda").bfloat16() for _ in range(3))
    given = {"cu_seqlens": cu, "seqused": None, "max_seqlen": 32768}
    for _ in range(20):
        found = quantize_together(
            q, k, v, scaling="block", center=True, hadamard=False, seed=0,
            lengths={"q": given, "k": given}, transposed=False,
        )  # fmt: skip
    for ours, x, center in zip(found, (q, k, v), (False, True, True), strict=True):
        theirs = fa3.quantize(x, center=center, **given)
        assert torch.equal(ours.x.view(torch.uint8), theirs.x.view(torch.uint8))
        assert ours.mean is None or torch.equal(ours.mean, theirs.mean)


@pytest.mark.parametrize(("at", "name"), list(enumerate("qkv")))
def test_a_tensor_that_cannot_be_quantized_is_named(at, name):
    inputs = [torch.randn(1, 20, 2, 64) for _ in range(3)]
    inputs[at] = inputs[at].double()
    with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected .*float64"):
        fa3.attention_fp8(*inputs)
    arrays = [x.numpy() if i != at else np.zeros(x.shape) for i, x in enumerate(inputs)]
    with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected .*float64"):
        fa3.attention_fp8(*arrays)
