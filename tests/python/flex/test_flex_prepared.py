# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call serves calls that are alike, and no others: each change that a result
could depend on is seen."""

import contextlib
import itertools
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import flex_functions
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402

from fa3 import masks  # noqa: E402
from fa3.flex import attention, bias, known_functions, lists, prepared  # noqa: E402

BATCH, ROWS, HEADS, DIM = 2, 24, 2, 8
DRAW = torch.Generator().manual_seed(3)
Q, K, V = (torch.randn(BATCH, ROWS, HEADS, DIM, generator=DRAW) for _ in range(3))


@pytest.fixture(autouse=True)
def new_tables():
    forget()


def forget():
    for table in (prepared._kept, known_functions._known, lists._known):
        table.clear()


@pytest.fixture
def decided(monkeypatch):
    """The calls for which something was decided."""
    made = []
    for module in (attention, bias):
        own = module.prepare
        recorded = lambda *given, own=own: made.append(given) or own(*given)  # noqa: E731
        monkeypatch.setattr(module, "prepare", recorded)
    return made


def flex(score_mod=None, tensors=(Q, K, V), **options):
    return fa3.flex_attention(*tensors, score_mod=score_mod, **options)


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


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_decides_nothing(decided, name):
    first = CALLS[name]()
    cold = len(decided)
    assert cold > 0
    assert all(torch.equal(CALLS[name](), first) for _ in range(2))
    assert len(decided) == cold


FACTOR, OPERATION = 2.0, torch.tanh
constants = types.ModuleType("constants")


def scaled_by_global(s, b, h, i, j):
    return s * FACTOR


def helped(s, b, h, i, j):
    return scaled_by_global(s, b, h, i, j) + 1


def by_operation(s, b, h, i, j):
    return OPERATION(s)


def of_module(s, b, h, i, j):
    return constants.turned(s * constants.factor + constants.row[h] * i)


def test_globals_are_looked_at(monkeypatch):
    def rebind(name, value):
        return lambda: monkeypatch.setitem(globals(), name, value)

    changes = rebind("FACTOR", 3.0), rebind("FACTOR", -1), rebind("scaled_by_global", softcap)
    assert is_seen(lambda: flex(helped), *changes)
    assert is_seen(lambda: flex(alibi), rebind("SLOPES", torch.tensor([1.0, 0.125])))
    # Built-in functions, of which each is as good a global as another.
    assert is_seen(lambda: flex(by_operation), rebind("OPERATION", torch.sin))
    assert is_seen(lambda: flex(mask_mod=documents), rebind("OWNER", torch.arange(ROWS) // 5))


def test_what_a_function_names_of_modules_is_looked_at(monkeypatch):
    def of(name, value):
        return lambda: monkeypatch.setattr(constants, name, value, raising=False)

    of("turned", torch.sin)()
    of("row", torch.tensor([0.1, 0.2]))()
    of("factor", 2.0)()
    rows = torch.tensor([0.3, 0.1])
    changes = of("factor", 3.0), of("row", rows), of("turned", torch.tanh)
    assert is_seen(lambda: flex(of_module), *changes, lambda: rows.mul_(2))


def test_cells_defaults_attributes_and_code_are_looked_at():
    number, row, operation = 2.0, torch.tensor([0.5, 0.25]), torch.tanh

    def score_mod(s, b, h, i, j, factor=1.0, *, power=1.0):
        return operation(s * number * factor) + row[h] * power * j

    def other(s, b, h, i, j, factor=1.0, *, power=1.0):
        return operation(s * number * factor) - row[h] * power * j

    def change_cell(name):
        nonlocal number, row, operation
        number = 3.0 if name == "number" else number
        row = torch.tensor([1.0, 2.0]) if name == "row" else row
        operation = torch.sin if name == "operation" else operation

    assert is_seen(
        lambda: flex(score_mod),
        lambda: change_cell("number"),
        lambda: change_cell("row"),
        lambda: change_cell("operation"),
        lambda: setattr(score_mod, "__defaults__", (2.0,)),
        lambda: setattr(score_mod, "__kwdefaults__", {"power": 0.5}),
        lambda: setattr(score_mod, "__code__", other.__code__),
    )

    def with_attribute(s):
        return s * of_attribute.by

    def of_attribute():
        pass

    of_attribute.by = 2.0
    by_attribute = lambda s, b, h, i, j: with_attribute(s)  # noqa: E731
    assert is_seen(lambda: flex(by_attribute), lambda: setattr(of_attribute, "by", 4.0))


def test_captured_tensors_are_data(decided):
    slopes, owner = torch.tensor([0.5, 0.25]), torch.arange(ROWS) // 7

    def score_mod(s, b, h, i, j):
        return s + slopes[h] * (j - i)

    def mask_mod(b, h, i, j):
        return owner[i] == owner[j]

    for options in ({}, {"mask_mod": mask_mod}):
        assert is_seen(lambda o=options: flex(score_mod, **o), lambda: slopes.mul_(-1))
    assert is_seen(lambda: flex(mask_mod=mask_mod), lambda: owner.add_(torch.arange(ROWS) % 2))
    seen = torch.rand(ROWS, ROWS, generator=DRAW) < 0.5
    for tensor in (slopes.clone(), BIAS.clone(), seen):
        name = "alibi_slopes" if tensor.ndim == 1 else "bias"
        change = tensor.logical_not_ if tensor.dtype == torch.bool else lambda t=tensor: t.mul_(-1)
        assert is_seen(lambda n=name, t=tensor: attend(**{n: t}), change)
    decided.clear()
    flex(score_mod)
    slopes.mul_(2)
    flex(score_mod)
    assert len(decided) == 1  # a warm call reads them


def test_a_tensor_that_is_out_of_sight_is_looked_at(monkeypatch):
    row = torch.tensor([0.5, 0.25])
    monkeypatch.setattr(constants, "box", types.SimpleNamespace(row=row), raising=False)
    call = lambda: flex(lambda s, b, h, i, j: s * constants.box.row[h])  # noqa: E731
    assert not is_recorded(call())
    row.requires_grad_()
    assert is_recorded(call())


def test_a_number_that_is_read_from_a_tensor_is_read_in_each_call():
    row = torch.tensor([0.5, 0.25])
    call = lambda: flex(lambda s, b, h, i, j: s * row.sum().item())  # noqa: E731
    assert is_seen(call, lambda: row.mul_(3))


def test_lists_of_what_does_not_count_its_writes_are_made_in_each_call():
    with torch.inference_mode():
        owner = torch.arange(ROWS) // 7
    mask_mod = lambda b, h, i, j: owner[i] == owner[j]  # noqa: E731

    def change():
        with torch.inference_mode():
            owner.add_(torch.arange(ROWS) % 2)

    for options in ({}, {"score_mod": softcap}):
        assert is_seen(lambda o=options: flex(mask_mod=mask_mod, **o), change)


def test_what_a_tensor_is_like_is_looked_at():
    tensor = torch.tensor([0.5, 0.25])
    limit = 3

    def score_mod(s, b, h, i, j):
        return s + tensor[h] * j if tensor.dtype == torch.float32 else s - tensor[h] * j

    assert is_seen(
        lambda: flex(score_mod), lambda: setattr(tensor, "data", torch.ones(2, dtype=torch.float64))
    )

    def by_shape(s, b, h, i, j):
        return s * tensor.shape[0] * limit

    assert is_seen(lambda: flex(by_shape), lambda: setattr(tensor, "data", torch.ones(5)))
    with pytest.raises(fa3.Unsupported, match="whole captured tensor"):
        flex(lambda s, b, h, i, j: s + tensor)


def test_a_tensor_that_is_gone_is_not_another_one():
    """Also one whose elements no function reads."""

    def use(marked):
        out = flex(lambda s, b, h, i, j: s * marked.factor)
        forget_nothing = fa3.attention(Q, K, V, scale=DIM**-0.5 * marked.factor)
        torch.testing.assert_close(out, forget_nothing)

    def make(factor):
        tensor = torch.zeros(3)
        tensor.factor = factor
        return tensor

    flex_functions.use_at_one_address([lambda x=x: make(x) for x in (1.0, 2.0, 3.0)], use)


@pytest.mark.parametrize("kind", ["function", "bias"])
def test_gradients_are_recorded_where_they_are_wanted(kind):
    slopes = torch.tensor([0.5, 0.25])
    q = Q.clone()

    def call():
        if kind == "bias":
            return attend((q, K, V), alibi_slopes=slopes)
        return flex(lambda s, b, h, i, j: s + slopes[h] * j, tensors=(q, K, V))

    for _ in range(2):
        assert not is_recorded(call())
    for tensor in (slopes, q):
        tensor.requires_grad_()
        for _ in range(2):
            out = call()
            (grad,) = torch.autograd.grad(out.sum(), tensor)
            assert is_recorded(out) and grad.shape == tensor.shape and grad.abs().sum() > 0
        with torch.no_grad():
            assert not is_recorded(call())
        with torch.inference_mode():
            assert call().is_inference()
        assert is_recorded(call())
        tensor.requires_grad_(False)
        assert not is_recorded(call())
    assert not call().is_inference()


def is_recorded(out):
    """As one call; torch records its operations wherever they run."""
    assert out.grad_fn is None or out.grad_fn.name() == "FlexBackward"
    return out.grad_fn is not None


def test_lists_of_inference_mode_and_out_of_it_are_the_same(decided):
    with torch.inference_mode():
        inside = flex(mask_mod=documents)
    q = Q.clone().requires_grad_()
    for _ in range(2):
        out = flex(mask_mod=documents, tensors=(q, K, V))
        torch.testing.assert_close(out, inside.clone())
        assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@contextlib.contextmanager
def elsewhere():
    """Autocast of a GPU, which torch.autocast leaves off where there is none."""
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def gradients_of_a_softcap():
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    return torch.autograd.grad(flex(softcap, tensors=leaves).square().sum(), leaves)


def test_autocast_is_looked_at():
    """Masks are no lists there: these would be cast, and score functions are not."""
    for call in (lambda: flex(mask_mod=documents), lambda: flex(softcap)):
        outside = call()
        for _ in range(2):
            with elsewhere():
                assert torch.equal(call(), outside)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert call().dtype == torch.float32
                torch.testing.assert_close(call(), outside)
            assert torch.equal(call(), outside)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = gradients_of_a_softcap()
    assert all(map(torch.equal, mine, gradients_of_a_softcap()))
    for _ in range(2):
        assert attend(bias=BIAS).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert attend(bias=BIAS).dtype == torch.bfloat16


def test_what_a_switch_of_torchs_may_refuse_is_not_kept(decided):
    for _ in range(2):
        attend(bias=BIAS, deterministic=True)
    assert len(decided) == 2 and not prepared._kept


OPTIONS = {
    "scale": [0.1, 0.2, None],
    "causal": [True, False],
    "window": [(3, 0), (3, 1), (None, 0), (None, None)],
    "softcap": [0.5, 1.0, None],
    "seqused_k": [USED, torch.tensor([3, 24], dtype=torch.int32), None],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_looked_at(name):
    calls = [lambda **o: attend(alibi_slopes=SLOPES, **o), lambda **o: attend(bias=BIAS > 0, **o)]
    if name != "softcap":
        calls.append(lambda **o: flex(alibi, **o))
        calls.append(lambda **o: flex(mask_mod=documents, **o))
        calls.append(lambda **o: flex(softcap, mask_mod=documents, **o))
    for call in calls:
        first = []
        for value in OPTIONS[name]:
            forget()
            first.append(call(**{name: value}))
        for value, right in [*zip(OPTIONS[name], first, strict=True)] * 2:
            assert torch.equal(call(**{name: value}), right)
        assert not any(torch.equal(a, b) for a, b in itertools.pairwise(first))


WITH_SHAPES = {
    "bias": lambda tensors, added: attend(tensors, bias=added),
    "bias and slopes": lambda tensors, added: attend(tensors, bias=added, alibi_slopes=SLOPES),
    "documents": lambda tensors, _: flex(None, tensors, mask_mod=documents, causal=True),
    "documents and a function": lambda tensors, _: flex(softcap, tensors, mask_mod=documents),
}


@pytest.mark.parametrize("name", WITH_SHAPES)
def test_shapes_types_and_strides_are_looked_at(name):
    wide = BIAS[:1, :1].expand(HEADS, ROWS, ROWS)
    given = [
        ((Q, K, V), BIAS),
        ((Q[:, :9].contiguous(), K, V), BIAS[:, :9].contiguous()),
        ((Q, K[:, :9].contiguous(), V[:, :9].contiguous()), BIAS[..., :9].contiguous()),
        ((Q[..., :4].contiguous(), K[..., :4].contiguous(), V), BIAS),
        ((Q, K[:, :, :1], V[:, :, :1]), BIAS[:1]),
        ((Q.transpose(1, 2).contiguous().transpose(1, 2), K, V), BIAS.to(torch.bfloat16)),
        ((Q.double(), K.double(), V.double()), wide),
        ((Q, K, V[..., :3]), wide),
        ((Q, K, V), wide),
        ((Q, K, V), BIAS.transpose(1, 2)),
    ]
    right = []
    for tensors, added in given:
        forget()
        right.append(WITH_SHAPES[name](tensors, added))
    forget()
    for (tensors, added), expected in zip(given * 2, right * 2, strict=True):
        out = WITH_SHAPES[name](tensors, added)
        assert torch.equal(out, expected) and out.stride() == expected.stride()


def test_whether_queries_are_contiguous_is_looked_at(monkeypatch):
    """Results may be new tensors like them then."""
    alike = []
    monkeypatch.setattr(attention, "forward", lambda call, *_: alike.append(call) or (Q, None))
    for q in (Q, Q.transpose(1, 2).contiguous().transpose(1, 2)) * 2:
        flex(softcap, tensors=(q, K, V))
    assert [call.is_out_like for call in alike] == [True, False] * 2


def test_a_tensor_that_stands_for_a_number_is_read_in_each_call():
    scale = torch.tensor(0.1)
    for call in (lambda: flex(softcap, scale=scale), lambda: attend(bias=BIAS, scale=scale)):
        assert is_seen(call, lambda: scale.mul_(3))
    left = torch.tensor(3)
    assert is_seen(lambda: flex(softcap, window=(left, None)), lambda: left.add_(4))


def test_lengths_that_are_one_tensor_for_queries_and_keys_are_looked_at():
    def call(of_keys):
        options = {**PACKED, "cu_seqlens_k": of_keys, "alibi_slopes": SLOPES}
        return attend((Q[0], K[0], V[0]), **options)

    def of_parts(*rows):
        parts = [
            attend((Q[:1, a:b], K[:1, c:d], V[:1, c:d]), alibi_slopes=SLOPES)[0]
            for (a, b), (c, d) in zip([(0, 10), (10, 24)], rows, strict=True)
        ]
        return torch.cat(parts)

    other = torch.tensor([0, 4, 24], dtype=torch.int32)
    same, unequal = of_parts((0, 10), (10, 24)), of_parts((0, 4), (4, 24))
    for _ in range(2):
        torch.testing.assert_close(call(STARTS), same)
        torch.testing.assert_close(call(other), unequal)
        torch.testing.assert_close(call(STARTS.clone()), same)


def test_what_watches_calls_is_asked_in_each():
    call = lambda q: flex(softcap, tensors=(q, K, V))  # noqa: E731
    call(Q)
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(fa3.Unsupported, match="forward-mode"),
    ):
        call(torch.autograd.forward_ad.make_dual(Q, Q))
    others = [lambda q: attend(bias=BIAS, tensors=(q, K, V)), lambda q: attend(bias=BIAS > 0)]
    others.append(lambda q: flex(mask_mod=documents, tensors=(q, K, V)))
    for kind in (call, *others):
        for transformed in (
            torch.func.vmap(kind),
            torch.func.grad(lambda q, kind=kind: kind(q).sum()),
        ):
            with pytest.raises(fa3.Unsupported, match="^score_mod, .*torch.func's transforms"):
                transformed(Q)
    with pytest.raises(fa3.Unsupported, match="torch.func"):
        torch.func.vmap(lambda x: x + call(Q).sum())(torch.ones(2))
    by_lists = lambda q: flex(block_mask=BLOCKS, tensors=(q, K, V)).sum()  # noqa: E731
    leaf = Q.clone().requires_grad_()
    right = torch.autograd.grad(by_lists(leaf), leaf)[0]
    torch.testing.assert_close(torch.func.grad(by_lists)(Q), right)
    with torch.inference_mode():  # where torch shows the function other operations
        forget()
        torch.testing.assert_close(call(Q), flex(softcap))


def test_threads_have_calls_of_their_own():
    def call(number):
        row = torch.full((HEADS,), float(number))
        out = flex(lambda s, b, h, i, j: s * row[h] * number)
        return out, flex(scale=DIM**-0.5 * number**2)

    with ThreadPoolExecutor(4) as threads:
        for mine, right in threads.map(call, [1, 2, 3, 4] * 20):
            torch.testing.assert_close(mine, right)


def test_tables_keep_their_size(monkeypatch):
    monkeypatch.setattr(known_functions, "MOST", 3)
    for number in range(7):
        flex(lambda s, b, h, i, j, n=number: s * n)
    assert len(prepared._kept) == len(known_functions._known) == 3


def test_what_is_kept_keeps_no_tensor_alive(decided):
    tensors = [torch.arange(ROWS) // 5, torch.ones(HEADS), BIAS.clone()]
    times = lambda s, b, h, i, j, t=tensors[1]: s * t[h]  # noqa: E731
    same = lambda b, h, i, j, t=tensors[0]: t[i] == t[j]  # noqa: E731
    flex(times, mask_mod=same)
    attend(bias=tensors[2], alibi_slopes=tensors[1], seqused_k=USED)
    gone = [weakref.ref(t) for t in tensors]
    assert prepared._kept
    del tensors, times, same
    decided.clear()
    assert [t() for t in gone] == [None] * 3


def test_a_refusal_is_not_kept():
    for _ in range(2):
        with pytest.raises(fa3.Unsupported, match="no gradients? through|no gradient goes"):
            attend(alibi_slopes=SLOPES.clone().requires_grad_(), **pages())
        with contextlib.suppress(fa3.Unsupported), torch.no_grad():
            attend(alibi_slopes=SLOPES.clone().requires_grad_(), **pages())


def pages():
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    k, v = (x.reshape(4, 12, HEADS, DIM) for x in (K, V))
    return {"tensors": (Q[:, :1], k, v), "page_table": table, "seqused_k": USED}


def test_what_cannot_be_told_apart_is_looked_up_in_each_call():
    table, items = {"factor": 1.0}, [1.0]
    get = table.get
    by_dict = lambda s, b, h, i, j: s * table["factor"]  # noqa: E731
    by_method = lambda s, b, h, i, j: s * get("factor")  # noqa: E731
    by_list = lambda s, b, h, i, j: s * items[0]  # noqa: E731
    assert known_functions.signature(by_method) is known_functions.signature(by_list) is None
    assert is_seen(lambda: flex(by_dict), lambda: table.update(factor=2.0))
    assert is_seen(lambda: flex(by_method), lambda: table.update(factor=3.0))
    assert is_seen(lambda: flex(by_list), lambda: items.append(items.pop() + 1))


def test_a_number_is_known_by_its_type_and_value():
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    values = [2.0, 2, True, "2", None, 2**70, np.float64(2), np.float64(3), (2,), (2.0,), {2: 2}]
    made = [known_functions.signature((value,)) for value in values]
    assert made[5] is None  # more than 64 bits
    assert len({*made}) == len(values)
    assert made == [known_functions.signature((value,)) for value in values]
    nested = [((1,), 2), ((1, 2),), (1, (2,)), ({1: 2}, 3), ({1: 2, 3: ()},), ((1, 2), ())]
    assert len({known_functions.signature(*value) for value in nested}) == len(nested)


class Otherwise(torch.Tensor):
    """Shows itself as tensors of older torch do."""

    __dlpack_c_exchange_api__ = None


def test_a_tensor_without_an_exchange_table_is_known_too(decided):
    slopes = torch.tensor([0.5, 0.25]).as_subclass(Otherwise)
    score_mod = lambda s, b, h, i, j: s * slopes.shape[0] + slopes[h]  # noqa: E731
    first = known_functions.signature(score_mod)
    assert first is not None and known_functions.signature(score_mod) == first
    slopes.data = torch.ones(3)
    assert known_functions.signature(score_mod) != first
    assert known_functions.signature(slopes) is None


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_what_stops_a_program_is_not_swallowed(raised, monkeypatch):
    def names_of(code):
        raise raised

    class Refusing(torch.Tensor):
        __dlpack_c_exchange_api__ = None
        raises = ValueError

        @property
        def shape(self):
            raise self.raises

    def asked_of_a_module(s, b, h, i, j):
        return s * constants.refusing

    captured = torch.ones(2).as_subclass(Refusing)
    by_cell = lambda s, b, h, i, j: s * captured  # noqa: E731
    monkeypatch.setattr(constants, "refusing", captured, raising=False)
    assert known_functions.signature(by_cell) is None
    assert known_functions.signature(asked_of_a_module) is not None
    Refusing.raises = raised
    for function in (by_cell, asked_of_a_module):
        with pytest.raises(raised):
            known_functions.signature(function)
    monkeypatch.setattr(known_functions, "names_of", names_of)
    with pytest.raises(raised):
        known_functions.signature(lambda s, b, h, i, j: s)
