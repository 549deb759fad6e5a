# SPDX-License-Identifier: Apache-2.0
"""bias and alibi_slopes of fa3.attention, on the CPU, against softmax in float64."""

import re

import pytest
from warm_calls import kernels_on_the_cpu

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
from fa3.compat.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402
from fa3.flex import bias as forms  # noqa: E402
from fa3.flex.decisions import Decision  # noqa: E402
from fa3.flex.function.pieces import gradient_texts_of  # noqa: E402
from fa3.flex.function.text import MOST_ROWS  # noqa: E402
from fa3.flex.stored import stored_of  # noqa: E402

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 37, 53, 8
SHAPES = [
    (BATCH, HEADS, QUERIES, KEYS),
    (HEADS, QUERIES, KEYS),
    (QUERIES, KEYS),
    (BATCH, 1, 1, KEYS),
    (BATCH, 1, QUERIES, 1),
    (1, HEADS, 1, 1),
    (KEYS,),
    (),
]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def operands(dtype=torch.float64, queries=QUERIES, keys=KEYS):
    q = randn(BATCH, queries, HEADS, DIM, seed=1, dtype=dtype)
    k, v = (randn(BATCH, keys, HEADS // 2, DIM, seed=s, dtype=dtype) for s in (2, 3))
    return [x.requires_grad_() for x in (q, k, v)]


def distances(queries, keys):
    return torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)


def by_softmax(q, k, v, bias=None, slopes=None, causal=False, softcap=0.0):
    """The formula, with the scores stored."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    distance = distances(*scores.shape[-2:])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None and bias.dtype == torch.bool:
        scores = scores.masked_fill(~bias, -torch.inf)
    elif bias is not None:
        scores = scores + bias.double()
    if slopes is not None:
        slopes = slopes.double() if slopes.ndim == 2 else slopes.double()[None]
        scores = scores - slopes[..., None, None] * distance.abs()
    if causal:
        scores = scores.masked_fill(distance < 0, -torch.inf)
    return (scores.softmax(-1).nan_to_num(0) @ v).transpose(1, 2)


def same_with_gradients(mine, right, inputs, **tolerance):
    torch.testing.assert_close(mine.double(), right, **tolerance)
    do = randn(*right.shape, seed=9)
    given = torch.autograd.grad(mine, inputs, do.to(mine.dtype))
    for a, b in zip(given, torch.autograd.grad(right, inputs, do), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_bias_broadcasts_and_has_its_gradient(shape, causal):
    q, k, v = operands()
    bias = randn(*shape, seed=4).requires_grad_()
    slopes = randn(HEADS, seed=5).abs().requires_grad_()
    mine = fa3.attention(q, k, v, bias=bias, alibi_slopes=slopes, causal=causal, softcap=2.0)
    right = by_softmax(q, k, v, bias, slopes, causal, 2.0)
    same_with_gradients(mine, right, (q, k, v, bias, slopes), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("queries, keys", [(KEYS, KEYS), (QUERIES, KEYS), (KEYS, QUERIES)])
@pytest.mark.parametrize("causal", [False, True])
def test_alibi_is_aligned_bottom_right(queries, keys, causal):
    q, k, v = operands(queries=queries, keys=keys)
    for shape in ((HEADS,), (BATCH, HEADS)):
        slopes = randn(*shape, seed=5).requires_grad_()
        mine = fa3.attention(q, k, v, alibi_slopes=slopes, causal=causal)
        right = by_softmax(q, k, v, None, slopes, causal)
        same_with_gradients(mine, right, (q, k, v, slopes), rtol=1e-9, atol=1e-9)


def test_gradients_agree_with_finite_differences():
    q, k, v = (x[:1, :5, :2].detach().requires_grad_() for x in operands())
    bias, slopes = (randn(*s, seed=6).requires_grad_() for s in ((2, 1, 5), (2,)))

    def call(*tensors):
        return fa3.attention(*tensors[:3], bias=tensors[3], alibi_slopes=tensors[4])

    assert torch.autograd.gradcheck(call, (q, k[:, :, :1], v[:, :, :1], bias, slopes))


def test_booleans_hide_keys_and_a_row_without_keys_is_zero():
    q, k, v = operands()
    mask = randn(BATCH, 1, QUERIES, KEYS, seed=7) > 0
    mask[0, 0, 3] = False
    mine, lse = fa3.attention(q, k, v, bias=mask, return_lse=True)
    same_with_gradients(mine, by_softmax(q, k, v, mask), (q, k, v), rtol=1e-9, atol=1e-9)
    assert (mine[0, 3] == 0).all() and (lse[0, :, 3] == -torch.inf).all()


def test_minus_infinity_hides_as_false_does():
    q, k, v = operands(torch.float32)
    mask = randn(QUERIES, KEYS, seed=7) > 0
    mask[5] = False
    floats = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    mine, right = (fa3.attention(q, k, v, bias=b) for b in (floats, mask))
    torch.testing.assert_close(mine, right, rtol=1e-6, atol=1e-6)
    assert (mine[:, 5] == 0).all()


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_biases_and_slopes_in_16_bit_are_those_of_float64(device, shape, causal, dim):
    """On a Hopper GPU by the kernels, and by nothing else."""

    def made(*shape, seed):
        return randn(*shape, seed=seed).bfloat16().requires_grad_()

    q = made(BATCH, QUERIES, HEADS, dim, seed=1)
    k, v = (made(BATCH, KEYS, HEADS // 2, dim, seed=s) for s in (2, 3))
    bias, slopes = made(*shape, seed=4), (made(HEADS, seed=5).abs() * 0.1).detach().requires_grad_()
    weight = randn(BATCH, QUERIES, HEADS, dim, seed=6)
    inputs = [q, k, v, bias, slopes]

    def call(attend, weight, *tensors):
        q, k, v, bias, slopes = tensors
        out = attend(q, k, v, bias=bias, slopes=slopes)
        return out, *torch.autograd.grad((out.double() * weight).sum(), tensors)

    def by_fa3(q, k, v, bias, slopes):
        return fa3.attention(q, k, v, bias=bias, alibi_slopes=slopes, causal=causal)

    right = call(lambda *t, **o: by_softmax(*t, **o, causal=causal), weight,
                 *(t.detach().double().requires_grad_() for t in inputs))  # fmt: skip
    mine = call(by_fa3, weight.to(device),
                *(t.detach().to(device).requires_grad_() for t in inputs))  # fmt: skip
    names = "out", "q", "k", "v", "bias", "slopes"
    for name, a, b in zip(names, mine, right, strict=True):
        # A row's P (dP - delta) add up to 0: sums over rows and keys keep roundings of their terms.
        few = name == "slopes" or (name == "bias" and bias.shape[-1:] in ((), (1,)))
        size = max(b.abs().max().item(), 1.0 if few else 0.0)
        atol = (0.3 if few else 0.03) * size
        torch.testing.assert_close(a.double().cpu(), b, rtol=0, atol=atol, msg=lambda m: name + m)  # noqa: B023


# Rows of whole 16 bytes come by TMA and their gradients leave by it; a Hopper kernel takes other
# tiles from 8192 keys on. stride: of a row, in elements more than it has. offset: of the address.
TILES = {
    "each score's own": {"shape": (2, 4, 200, 264)},
    "one for all sequences": {"shape": (1, 4, 200, 264)},
    "one for all heads": {"shape": (2, 1, 200, 264)},
    "rows alone": {"shape": (200, 264), "window": (90, 20)},
    "a window": {"shape": (2, 4, 264, 264), "window": (133, 71)},
    "one for three sequences": {"shape": (1, 4, 200, 264), "batch": 3, "causal": True},
    "hidden keys": {"shape": (2, 4, 200, 264), "hides": 0.4, "causal": True},
    "rows with room": {"shape": (2, 4, 200, 261), "stride": 3, "causal": True},
    "an odd address": {"shape": (2, 4, 200, 264), "offset": 1},
    "many keys": {"shape": (2, 4, 200, 8200), "causal": True},
    "many keys, a window": {"shape": (1, 4, 200, 8200), "window": (4001, 100)},
}


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.bfloat16), (128, torch.float16)])
@pytest.mark.parametrize("case", TILES)
def test_a_bias_as_large_as_the_scores_is_that_of_float64(device, case, dim, dtype):
    defaults = {"batch": 2, "stride": 0, "offset": 0, "hides": 0.0}
    options = defaults | {"causal": False, "window": (None, None)} | TILES[case]
    if device == "cpu" and dim == 128:
        pytest.skip("torch operations, of which one form is enough")
    *others, rows, keys = shape = options["shape"]
    batch = options["batch"] if keys < 1000 else 1
    others = others and [min(others[0], batch), *others[1:]]
    shape = (*others, rows, keys)
    pitch = keys + options["stride"]
    memory = randn(*others, rows, pitch, seed=4).flatten().to(dtype)
    if options["hides"]:
        memory[randn(memory.numel(), seed=5) < -options["hides"]] = -torch.inf
    memory = torch.cat([memory.new_zeros(options["offset"]), memory]).to(device)
    bias = memory[options["offset"] :].view(*others, rows, pitch)[..., :keys].requires_grad_()
    q = randn(batch, rows, 4, dim, seed=1).to(dtype).to(device).requires_grad_()
    k, v = (
        randn(batch, keys, 2, dim, seed=s).to(dtype).to(device).requires_grad_() for s in (2, 3)
    )
    inputs = [q, k, v, bias]
    do = randn(batch, rows, 4, dim, seed=6).to(dtype).to(device)
    asked = {"causal": options["causal"], "window": options["window"]}
    mine = fa3.attention(q, k, v, bias=bias, **asked)
    mine = mine, *torch.autograd.grad(mine, inputs, do)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    right = by_rules(*wide, **asked)
    right = right, *torch.autograd.grad(right, wide, do.double())
    assert mine[-1].shape == shape
    for name, a, b in zip(("out", "q", "k", "v", "bias"), mine, right, strict=True):
        step = torch.finfo(dtype).eps * b.abs().max().item()
        error = (a.double() - b).abs().max().item() / step
        assert error < 3, (name, error)  # 0.3 to 1.3 were seen


def by_rules(q, k, v, bias, causal, window):
    """By softmax, of a window too; rows that see no key have no gradient."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
    behind = distances(*scores.shape[-2:]).to(q.device)
    left, right = window
    hidden = scores == -torch.inf
    hidden = hidden | (behind < 0) if causal else hidden
    hidden = hidden if left is None else hidden | (behind > left) | (behind < -right)
    p = scores.masked_fill(hidden, -1e30).softmax(-1).masked_fill(hidden, 0)
    return (p @ v).transpose(1, 2)


def test_a_kernel_stores_gradients_where_each_score_has_an_element():
    def stored(*shape, batch=2, dtype=torch.bfloat16):
        q, k = (torch.zeros(batch, s, 4, 64, dtype=dtype) for s in (200, 264))
        function, tensors = forms.function_with(torch.zeros(shape, dtype=dtype), None, None)
        call = Decision(function, 1.0, (None, None), 0, False, True)
        return stored_of(call, (0,), q, k, tensors)

    assert stored(2, 4, 200, 264) == 0
    assert stored(1, 4, 200, 264, batch=1) == 0
    assert stored(2, 4, 300, 264) == 0  # rows that nobody has
    assert stored(1, 4, 200, 264) is None  # two sequences have its elements
    assert stored(2, 1, 200, 264) is None
    assert stored(2, 4, 1, 264) is None
    assert stored(2, 4, 200, 260) is None  # ends within 16 bytes
    assert stored(2, 4, 200, 256) is None  # keys are clamped
    assert stored(2, 4, 200, 264, dtype=torch.float32) is None


def test_a_gradient_that_is_stored_repeats_and_others_ask_for_torchs_algorithms():
    def check(bias=None, slopes=None):
        rows, keys = 200, 264
        q, k = torch.zeros(1, rows, 4, 64), torch.zeros(1, keys, 4, 64)
        function, tensors = forms.function_with(bias, slopes, None)
        forms.refuse_any_order(function, tensors, q, k, forms.OPTIONS)

    whole = torch.zeros(1, 4, 200, 264, dtype=torch.bfloat16, requires_grad=True)
    slopes = torch.zeros(1, 4)
    check(whole)
    check(whole, slopes)
    check(whole.detach().float(), slopes)
    learning = slopes.clone().requires_grad_()
    narrow = torch.zeros(1, 1, 200, 264, dtype=torch.bfloat16, requires_grad=True)
    for refused in ((whole.float(),), (whole, learning), (None, learning), (narrow,)):
        with pytest.raises(fa3.Unsupported, match="use_deterministic_algorithms"):
            check(*refused)
    torch.use_deterministic_algorithms(True)
    try:
        check(whole, learning)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dim", [64, 256])  # stored by a kernel, and added up in one order
def test_the_gradient_of_a_bias_repeats_bit_by_bit(device, dim):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (randn(2, 200, 4, dim, seed=s, dtype=dtype).to(device) for s in range(3))
    bias = randn(1, 4, 200, 200, seed=3, dtype=dtype).to(device).requires_grad_()
    upstream = randn(2, 200, 4, dim, seed=4, dtype=dtype).to(device)

    def gradient(**options):
        out = fa3.attention(q, k, v, bias=bias, causal=True, **options)
        return torch.autograd.grad((out * upstream).sum(), bias)[0]

    first = gradient(deterministic=True)
    assert all(torch.equal(gradient(deterministic=True), first) for _ in range(3))
    size = first.abs().max().item()
    torch.testing.assert_close(gradient(), first, rtol=0, atol=4 * torch.finfo(dtype).eps * size)


def test_packed_sequences_have_rows_of_the_bias_and_diagonals_of_their_own():
    lengths_q, lengths_k = (5, 9, 0), (7, 4, 3)
    q, k, v = (
        randn(1, sum(n), h, DIM, seed=s)[0].requires_grad_()
        for n, h, s in ((lengths_q, HEADS, 1), (lengths_k, 2, 2), (lengths_k, 2, 3))
    )
    cu_q, cu_k = (
        torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32)
        for n in (lengths_q, lengths_k)
    )
    bias = randn(3, HEADS, 9, 7, seed=4).requires_grad_()
    slopes = randn(3, HEADS, seed=5).requires_grad_()
    mine = fa3.attention(
        *(q, k, v),
        bias=bias, alibi_slopes=slopes, causal=True,
        cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=9, max_seqlen_k=7,
    )  # fmt: skip
    parts = []
    for n, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        mine_q = q[cu_q[n] : cu_q[n] + rows][None]
        mine_k, mine_v = (x[cu_k[n] : cu_k[n] + keys][None] for x in (k, v))
        biases = bias[n, :, :rows, :keys]
        parts.append(by_softmax(mine_q, mine_k, mine_v, biases, slopes[n : n + 1], True)[0])
    right = torch.cat(parts)
    same_with_gradients(mine, right, (q, k, v, bias, slopes), rtol=1e-9, atol=1e-9)


def test_expanded_biases_are_read_as_what_they_repeat():
    q, k, v = operands()
    small = randn(1, 1, QUERIES, KEYS, seed=4).requires_grad_()
    wide = small.expand(BATCH, HEADS, QUERIES, KEYS)
    view = forms.viewed(wide, *forms.view_of(wide, q, (BATCH, HEADS, QUERIES, KEYS)))
    assert view.shape == small.shape
    mine = fa3.attention(q, k, v, bias=wide)
    same_with_gradients(mine, by_softmax(q, k, v, wide), (q, k, v, small), rtol=1e-9, atol=1e-9)


def test_equal_forms_share_one_function_and_its_kernels():
    first, other = (forms.function_with(randn(1, HEADS, 9, 9, seed=s), None, None) for s in (1, 2))
    assert first[0] is other[0] and first[1] is not other[1]
    assert first[0].may_hide
    slopes, _ = forms.function_with(None, torch.ones(1, HEADS), None, one_sided=True)
    assert not slopes.may_hide
    gradient = slopes.gradient((0,))
    assert gradient_texts_of(slopes, gradient).slope is None
    assert "add_for_tile<0>(" in gradient_texts_of(slopes, gradient).gradients
    keys, _ = forms.function_with(torch.ones(2, 1, 1, 9), None, None)
    assert "add_for_key<0>(" in gradient_texts_of(keys, keys.gradient((0,))).gradients
    number, _ = forms.function_with(torch.ones(1, 1, 1, 1), None, None)
    assert "add_for_tile<0>(" in gradient_texts_of(number, number.gradient((0,))).gradients


@pytest.mark.parametrize(
    "options, words",
    [
        ({"bias": torch.ones(3, QUERIES, KEYS)}, "bias: expected .* broadcasts"),
        ({"bias": torch.ones(1, 1, 1, 1, 1)}, "bias: expected a tensor"),
        ({"bias": torch.ones(KEYS, dtype=torch.int32)}, "bias: expected a tensor .*int32"),
        ({"bias": 3.0}, "bias: expected a tensor .*3.0"),
        ({"bias": torch.ones(KEYS, device="meta")}, "bias: expected memory on cpu"),
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes: expected floats of shape \(4,\)"),
        ({"alibi_slopes": torch.ones(HEADS, dtype=torch.int64)}, "alibi_slopes: .*int64"),
        ({"bias": torch.ones(KEYS), "dropout_p": 1.5}, "dropout_p: expected a probability from 0"),
        ({"bias": torch.ones(KEYS), "generator": torch.Generator()}, "generator: .*dropout_seed"),
        ({"bias": torch.ones(KEYS), "sink": torch.ones(4)}, "sink: not together with bias"),
        ({"bias": torch.ones(KEYS), "attention_chunk": 4}, "attention_chunk: not together"),
        ({"bias": torch.ones(KEYS), "engine": "cpu"}, "engine: expected none"),
        ({"bias": torch.ones(KEYS), "scale": 0}, "scale: expected a finite number > 0"),
        ({"bias": torch.ones(KEYS), "scale": float("nan")}, "scale: expected a finite number > 0"),
        ({"bias": torch.ones(KEYS), "softcap": -1.0}, "softcap: expected 0"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_go_together_is_a_sentence(options, words):
    q, k, v = operands(torch.float32)
    with pytest.raises((fa3.InvalidArgument, fa3.Unsupported), match=words):
        fa3.attention(q, k, v, **options)


@pytest.mark.parametrize(
    "name, end", [("casual", ". Did you mean 'causal'"), ("softmax_scale", "; here that is scale")]
)
def test_a_name_that_attention_has_not_is_no_option_beside_a_bias(name, end):
    q, k, v = operands(torch.float32)
    words = f"attention() got an unexpected keyword argument {name!r}{end}"
    with pytest.raises(TypeError, match=re.escape(words)):
        fa3.attention(q, k, v, bias=torch.ones(KEYS), **{name: True})


def test_arrays_that_are_no_torch_tensors_are_refused():
    q, k, v = (x.detach().float().numpy() for x in operands())
    with pytest.raises(fa3.Unsupported, match="^bias: expected None with arrays"):
        fa3.attention(q, k, v, bias=torch.ones(KEYS))


def test_flash_attn_takes_alibi_slopes():
    q, k, v = operands(torch.float32)
    slopes = randn(HEADS, seed=5, dtype=torch.float32).abs().requires_grad_()
    mine = flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    right = by_softmax(q, k, v, None, slopes.detach(), True)
    same_with_gradients(mine, right, (q, k, v), rtol=1e-4, atol=1e-5)
    cu = [torch.arange(0, 3 * n, n, dtype=torch.int32) for n in (QUERIES, KEYS)]
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse, _ = flash_attn_varlen_func(
        *packed, *cu, QUERIES, KEYS, causal=True, alibi_slopes=slopes, return_attn_probs=True
    )
    torch.testing.assert_close(out.view_as(mine), mine, rtol=1e-5, atol=1e-6)
    assert lse.shape == (HEADS, BATCH * QUERIES)


def test_an_output_in_place_is_written_as_torch_writes_it(monkeypatch):
    q, k, v = (x.detach() for x in operands(torch.float32))
    bias, out = randn(QUERIES, KEYS).float(), torch.empty(BATCH, QUERIES, HEADS, DIM)
    for sentence, wrong in (
        ("needs no gradient", torch.empty_like(out, requires_grad=True)),
        ("lazily negated", torch._neg_view(out)),
    ):
        with pytest.raises(fa3.InvalidArgument, match=f"^out: expected .*{sentence}"):
            fa3.attention(q, k, v, bias=bias, out=wrong)
    with pytest.raises(TypeError, match="^out: expected a torch.Tensor"):
        fa3.attention(q, k, v, bias=bias, out=out.numpy())
    assert fa3.attention(q, k, v, bias=bias, out=out) is out
    # A kernel writes beside torch, which is to know of it.
    kernels_on_the_cpu(monkeypatch, lambda *given: None)
    written = out._version
    assert fa3.attention(q, k, v, bias=bias, out=out) is out
    assert out._version == written + 1


@pytest.mark.parametrize("learn", [False, True])
def test_one_text_serves_what_a_bias_repeats_for_sequences_and_heads(learn):
    """A kernel is compiled for each text."""
    from fa3.flex.bias import function_with

    def texts(*shapes):
        made = (torch.zeros(shape, requires_grad=learn) for shape in shapes)
        return {function_with(x, None, None)[0].pieces(MOST_ROWS) for x in made}

    assert len(texts((2, 4, 9, 9), (1, 4, 9, 9), (2, 1, 7, 300), (1, 1, 128, 64))) == 1
    assert len(texts((2, 4, 1, 9), (1, 1, 1, 64), (1, 4, 1, 9))) == 1
    slopes = {function_with(None, torch.zeros(b, 4), None)[0].pieces(MOST_ROWS) for b in (1, 3)}
    assert len(slopes) == 1
