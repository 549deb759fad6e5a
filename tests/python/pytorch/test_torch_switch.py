# SPDX-License-Identifier: Apache-2.0
"""fa3 in torch's registry, and torch's CUDA operators (varlen_attn, cuDNN's) with it switched on.

Those operators have no kernels for CPU tensors. Here they get some, which only say that torch's own
kernel was reached, and fa3 is put before them as it is put before the CUDA kernels.
"""

import inspect
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn import attention as registry  # noqa: E402

front = pytest.importorskip("fa3.torch")
operators_on_cpu = pytest.importorskip("switch_on_cpu").operators_on_cpu
switch = pytest.importorskip("fa3.torch.switch")
if not switch.can_register():
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)
varlen = pytest.importorskip(
    "torch.nn.attention.varlen", reason="this torch has no torch.nn.attention.varlen"
)


pytestmark = pytest.mark.usefixtures("one_thread")


class TorchsOwn(Exception):
    """torch's own kernel was reached."""


@pytest.fixture
def on_cpu(monkeypatch):
    """Names of our kernels that ran to their end, in order, where torch would have CUDA tensors."""

    def torchs_own(name):
        def kernel(*args, **keywords):
            if name.startswith("_scaled"):  # as torch's own do: through their packed operators
                q, k, v = args[:3]
                flash_attention = torch.ops.aten._flash_attention_forward
                flash_attention(q, k, v, None, None, 5, 5, 0.1, False, False)
            raise TorchsOwn(name)

        return kernel

    with operators_on_cpu(monkeypatch, torchs_own) as ran, front.sdpa():
        yield ran


@pytest.fixture(params=["flash", "cudnn"])
def varlen_on(request, on_cpu, monkeypatch):
    """varlen_attn where torch takes its flash attention, or cuDNN as on Hopper; what ran."""
    if request.param == "cudnn":
        if not hasattr(varlen, "_cudnn_rejection_reasons"):
            pytest.skip("varlen_attn of this torch does not take cuDNN")
        monkeypatch.setattr(varlen, "_cudnn_rejection_reasons", lambda *arguments: [])
    return on_cpu, "_cudnn_attention" if request.param == "cudnn" else "_flash_attention"


def need(*names):
    """Skips where an older torch's varlen_attn lacks one of these arguments."""
    for name in names:
        if name not in inspect.signature(varlen.varlen_attn).parameters:
            pytest.skip(f"varlen_attn of this torch has no {name}")


def packed(lengths, heads=4, dim=16, wants_gradient=False):
    torch.manual_seed(0)
    made = torch.randn(3, sum(lengths), heads, dim)
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return [t.clone().requires_grad_(wants_gradient) for t in made], cu


def test_importing_fa3_torch_makes_the_name_known_and_activates_nothing():
    assert "fa3" in registry.list_flash_attention_impls()
    assert registry.current_flash_attention_impl() is None
    registry.activate_flash_attention_impl("fa3")
    assert registry.current_flash_attention_impl() == "fa3"
    front.disable_sdpa()
    assert registry.current_flash_attention_impl() is None


def handle():
    """What the registry holds of the active implementation."""
    own = registry._registry
    active = own._FLASH_ATTENTION_ACTIVE
    return active[1] if isinstance(active, tuple) else own._FLASH_ATTENTION_HANDLES[active]


class RegistryOfTorch210:
    """Its functions and its state: nothing is taken back, not even before another is activated."""

    def __init__(self):
        self._registry = self
        self._FLASH_ATTENTION_IMPLS, self._FLASH_ATTENTION_HANDLES = {}, {}
        self._FLASH_ATTENTION_ACTIVE = None

    def register_flash_attention_impl(self, name, *, register_fn):
        self._FLASH_ATTENTION_IMPLS[name] = register_fn

    def activate_flash_attention_impl(self, name):
        if name != self._FLASH_ATTENTION_ACTIVE:
            self._FLASH_ATTENTION_HANDLES[name] = self._FLASH_ATTENTION_IMPLS[name]()
            self._FLASH_ATTENTION_ACTIVE = name

    def list_flash_attention_impls(self):
        return sorted(self._FLASH_ATTENTION_IMPLS)

    def current_flash_attention_impl(self):
        return self._FLASH_ATTENTION_ACTIVE


def test_the_switch_goes_back_where_torchs_registry_cannot(monkeypatch):
    class Overrides(switch.Overrides):
        def __init__(self):
            super().__init__()
            alive.add(self)

        def remove(self):
            super().remove()
            alive.remove(self)

    alive = set()
    monkeypatch.setattr(switch, "Overrides", Overrides)
    monkeypatch.setattr(switch, "registry", RegistryOfTorch210())
    front.enable_sdpa()
    with front.sdpa("FA3"):
        assert switch.active() == "FA3" and len(alive) == 1
    assert switch.active() == "fa3" and len(alive) == 1
    front.disable_sdpa()
    assert switch.active() is None and not alive


def test_a_program_that_activates_FA3_finds_fa3_under_that_name():
    of_torch = registry._registry._FLASH_ATTENTION_IMPLS.get("FA3")
    front.enable_sdpa("FA3")
    if registry.current_flash_attention_impl() != "FA3":  # torchtitan's lines
        registry.activate_flash_attention_impl("FA3")
    assert type(handle()) is switch.Overrides
    with front.sdpa():
        assert registry.current_flash_attention_impl() == "fa3"
    assert registry.current_flash_attention_impl() == "FA3"
    front.disable_sdpa()
    assert registry.current_flash_attention_impl() is None
    assert registry._registry._FLASH_ATTENTION_IMPLS.get("FA3") is of_torch


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0)])
def test_varlen_attn_and_its_gradients(varlen_on, window):
    ran, prefix = varlen_on
    if prefix == "_cudnn_attention" and window == (3, 0):
        pytest.skip("torch does not give cuDNN windows")
    tensors, cu = packed([7, 13], wants_gradient=True)
    expected = fa3.attention(*tensors, cu_seqlens_q=cu, cu_seqlens_k=cu, window=window)
    given = {"window_size": window}
    if "is_causal" in inspect.signature(varlen.varlen_attn).parameters and window != (3, 0):
        given = {"is_causal": window == (-1, 0)}  # torch 2.10
    need(*given)
    actual = varlen.varlen_attn(*tensors, cu, cu, 13, 13, **given)
    gradients = torch.autograd.grad(actual.square().sum(), tensors)
    assert ran == [f"{prefix}_forward", f"{prefix}_backward"]
    torch.testing.assert_close(actual, expected)
    expected = torch.autograd.grad(expected.square().sum(), tensors)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("into", [False, True], ids=["new", "out"])
def test_varlen_attn_over_pages(varlen_on, into):
    need("enable_gqa", "seqused_k", "block_table")
    ran, prefix = varlen_on
    if into and not hasattr(varlen, "varlen_attn_out"):
        pytest.skip("this torch has no varlen_attn_out")
    (q, *_), cu = packed([1, 3])
    torch.manual_seed(1)
    k, v = torch.randn(2, 6, 8, 2, 16)  # 6 pages of 8 keys, 2 heads
    table = torch.tensor([[3, 0], [5, 1]], dtype=torch.int32)
    used = torch.tensor([9, 13], dtype=torch.int32)
    options = {"window_size": (-1, 0), "enable_gqa": True, "seqused_k": used, "block_table": table}
    aux = {"return_aux": varlen.AuxRequest(lse=True)}
    arguments = (q, k, v, cu, cu, 3, 16)
    if into:
        actual, lse = varlen.varlen_attn_out(torch.empty_like(q), *arguments, **options, **aux)
    else:
        actual, lse = varlen.varlen_attn(*arguments, **options, **aux)
    assert ran == [f"{prefix}_forward" + ("_no_dropout_inplace" if into else "")]
    for entry, row in ((0, slice(0, 1)), (1, slice(1, 4))):
        keys, values = (x[table[entry].long()].flatten(0, 1)[None, : used[entry]] for x in (k, v))
        one, its_lse = fa3.attention(q[None, row], keys, values, causal=True, return_lse=True)
        torch.testing.assert_close(actual[row], one[0])
        torch.testing.assert_close(lse[:, row], its_lse[0])


def test_one_split_means_what_torch_says_it_means(on_cpu, monkeypatch):
    need("num_splits")
    seen = []

    def run_forward(q, k, v, out, lse, options):
        seen.append((options.batch_invariant, options.num_splits))

    monkeypatch.setattr("fa3.torch.aten_kernels.run_forward", run_forward)
    tensors, cu = packed([7, 13])
    for num_splits in (None, 1, 3):
        varlen.varlen_attn(*tensors, cu, cu, 13, 13, num_splits=num_splits)
    assert seen == [(False, 0), (True, 0), (False, 3)]


def cudnn_sdpa(q, k, v, bias=None, causal=True):
    needs_backward = q.requires_grad
    call = torch.ops.aten._scaled_dot_product_cudnn_attention
    return call(q, k, v, bias, needs_backward, 0.0, causal)


@pytest.mark.parametrize("dim_v", [16, 24])
@pytest.mark.parametrize("rows_first", [False, True], ids=["bhsd", "bshd"])
def test_scaled_dot_product_attention_where_torch_takes_cudnn(on_cpu, rows_first, dim_v):
    torch.manual_seed(0)
    shapes = (2, 9, 4, 16), (2, 9, 2, 16), (2, 9, 2, dim_v)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    expected, its_lse = fa3.attention(q, k, v, causal=True, return_lse=True)
    of_torch = [t.transpose(1, 2) for t in (q, k, v)]
    if not rows_first:
        of_torch = [t.contiguous() for t in of_torch]
    actual, lse, *_ = cudnn_sdpa(*of_torch)
    gradients = torch.autograd.grad(actual.square().sum(), (q, k, v))
    name = "_scaled_dot_product_cudnn_attention"
    assert on_cpu == [name, name + "_backward"]
    like = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *(t.to("meta", torch.bfloat16) for t in of_torch), None, True, 0.0, True
    )
    assert (actual.shape, actual.stride()) == (like[0].shape, like[0].stride())
    assert lse.shape == like[1].shape
    torch.testing.assert_close(actual.transpose(1, 2), expected)
    torch.testing.assert_close(lse.reshape(its_lse.shape), its_lse)
    expected = torch.autograd.grad(expected.square().sum(), (q, k, v))
    torch.testing.assert_close(gradients, expected)


def left_to_torch(call, sentence):
    """The call reaches torch's own kernel each time, and says so once."""
    with pytest.warns(UserWarning, match=sentence) as said, pytest.raises(TorchsOwn):
        call()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TorchsOwn):
            call()


def test_who_allows_cudnn_alone_gets_cudnn_and_is_told(on_cpu):
    q = torch.randn(1, 2, 5, 16)
    with registry.sdpa_kernel(registry.SDPBackend.CUDNN_ATTENTION):
        left_to_torch(lambda: cudnn_sdpa(q, q, q), "flash attention.* is switched off here")
    both = [registry.SDPBackend.CUDNN_ATTENTION, registry.SDPBackend.FLASH_ATTENTION]
    with registry.sdpa_kernel(both):
        cudnn_sdpa(q, q, q)
    assert on_cpu == ["_scaled_dot_product_cudnn_attention"]


def test_what_cudnn_has_and_fa3_has_not_stays_with_cudnn(on_cpu):
    q = torch.randn(1, 2, 5, 16)
    bias = torch.zeros(1, 1, 5, 5)
    left_to_torch(lambda: cudnn_sdpa(q, q, q, bias, causal=False), "attn_bias is not supported")
    longer = torch.randn(1, 2, 7, 16)
    left_to_torch(lambda: cudnn_sdpa(q, longer, longer), "different lengths of query and key")
    assert on_cpu == []


def test_cudnns_top_left_causal_is_not_taken_for_ours(on_cpu):
    (q, k, v), cu = packed([7, 13])

    def call(cu_k):
        none = {"attn_bias": None, "compute_log_sumexp": True, "is_causal": True}
        torch.ops.aten._cudnn_attention_forward(
            q, k, v, cum_seq_q=cu, cum_seq_k=cu_k, max_q=13, max_k=13, **none
        )

    left_to_torch(lambda: call(cu.clone()), "different cum_seq_q and cum_seq_k")
    call(cu)
    assert on_cpu == ["_cudnn_attention_forward"]


def test_blocks_that_overlap_in_threads_leave_what_was_before_the_first():
    first, second = front.sdpa(fp8=True), front.sdpa()
    first.__enter__()
    assert switch.active() == "fa3" and switch.in_fp8
    second.__enter__()
    assert switch.active() == "fa3" and not switch.in_fp8
    first.__exit__(None, None, None)
    assert switch.active() == "fa3" and not switch.in_fp8
    second.__exit__(None, None, None)
    assert switch.active() is None and not switch.in_fp8


def test_a_block_that_switches_off_gives_the_blocks_around_it_what_they_had():
    with front.sdpa("FA3", fp8=True):
        with front.sdpa():
            front.disable_sdpa()
            assert switch.active() is None
        assert switch.active() == "FA3" and switch.in_fp8
        assert type(handle()) is switch.Overrides
    assert switch.active() is None and not switch.in_fp8 and not switch.shadowed


def test_threads_enter_and_leave_blocks_at_once():
    q = torch.randn(1, 2, 16, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q, q, q)

    def work(_):
        for _ in range(20):
            with front.sdpa():
                torch.testing.assert_close(attend(q, q, q), expected)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert switch.active() is None


def test_pages_without_their_lengths_stay_with_torch(on_cpu):
    need("block_table")
    (q, *_), cu = packed([1, 3])
    pages, table = torch.randn(6, 8, 4, 16), torch.tensor([[3, 0], [5, 1]], dtype=torch.int32)
    left_to_torch(
        lambda: varlen.varlen_attn(q, pages, pages, cu, cu, 3, 16, block_table=table),
        "block_table without seqused_k",
    )


@pytest.mark.parametrize("name", [3, None, "", ["FA3"]])
def test_a_name_that_is_no_text_is_refused_and_changes_nothing(name):
    for switch_on in (front.enable_sdpa, lambda name: front.sdpa(name).__enter__()):
        with pytest.raises(fa3.InvalidArgument, match="name: expected a name for torch's registry"):
            switch_on(name)
    with front.sdpa():
        assert switch.active() == "fa3"
    assert switch.active() is None
