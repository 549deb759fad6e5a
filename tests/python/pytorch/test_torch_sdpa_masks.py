# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention with an attn_mask on a GPU, where fa3 takes the mask before torch
makes another one of it. The CPU's tensors stand for a GPU's: the same kernel, under the CPU's keys.
"""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import torch.nn.functional as F  # noqa: E402
from torch.nn import attention as registry  # noqa: E402

front = pytest.importorskip("fa3.torch")
switch = pytest.importorskip("fa3.torch.switch")
if not switch.can_register():
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 140, 300, 32


@pytest.fixture
def calls(device, monkeypatch):
    """The masks that fa3 was given."""
    seen = []
    ((name, (_, kernel)),) = switch.WITH_MASK.items()

    def recorded(**arguments):
        out = kernel(**arguments)
        seen.append(arguments["attn_mask"])
        return out

    key = "AutogradCUDA" if device == "cuda" else "AutogradCPU"
    monkeypatch.setattr(switch, "WITH_MASK", {name: (key, recorded)})
    switch.warned.clear()
    return seen


def qkv(device, dtype=torch.bfloat16):
    torch.manual_seed(0)
    shapes = (HEADS, QUERIES), (KV_HEADS, KEYS), (KV_HEADS, KEYS)
    made = [torch.randn(BATCH, *shape, DIM, device=device).to(dtype) for shape in shapes]
    return [x.requires_grad_() for x in made]


def mask_of(kind, shape, device):
    draw = torch.Generator().manual_seed(3)
    numbers = torch.randn(shape, generator=draw)
    seen = numbers > -0.5
    seen[..., -1, :] = seen[..., -1, :] & (len(shape) < 3)  # the last query sees no key
    if kind == "booleans":
        return seen.to(device)
    return numbers.to(device, torch.bfloat16).requires_grad_(kind == "learns")


def run(tensors, mask, **options):
    out = F.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True, **options)
    wanted = [t for t in (*tensors, mask) if t.requires_grad]
    return out, *torch.autograd.grad(out.float().square().sum(), wanted)


def in_float64(tensors, mask, **options):
    """By torch's own formula; rows that see no key give 0."""
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    if mask.dtype != torch.bool:
        mask = mask.detach().double().requires_grad_(mask.requires_grad)
    with registry.sdpa_kernel(registry.SDPBackend.MATH):
        return run(wide, mask, **options)


SHAPES = [
    (QUERIES, KEYS),
    (1, KEYS),
    (BATCH, 1, 1, KEYS),
    (1, HEADS, QUERIES, KEYS),
    (BATCH, HEADS, QUERIES, KEYS),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["booleans", "learns"])
def test_masks_and_their_gradients_are_those_of_torch(device, calls, kind, shape):
    tensors, mask = qkv(device), mask_of(kind, shape, device)
    expected = in_float64(tensors, mask, scale=0.2)
    with front.sdpa(), warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(tensors, mask, scale=0.2)
    assert calls == [mask]
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.bfloat16 and a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=0, atol=0.02 * b.abs().max().item())
    if kind == "booleans" and len(shape) >= 3 and shape[-2] > 1:
        assert (actual[0][:, :, -1] == 0).all()


def test_without_gradients_and_in_inference_mode(device, calls):
    tensors, mask = qkv(device), mask_of("booleans", (QUERIES, KEYS), device)
    expected = in_float64(tensors, mask)[0]
    for mode in (torch.no_grad, torch.inference_mode):
        with front.sdpa(), mode():
            out = F.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.02)
    assert len(calls) == 1  # torch's own in inference mode


def test_calls_without_a_mask_and_afterwards_are_as_before(device, calls):
    tensors = qkv(device)
    with front.sdpa():
        F.scaled_dot_product_attention(*tensors, enable_gqa=True)
    mask = mask_of("numbers", (QUERIES, KEYS), device)
    F.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)
    assert not calls


@pytest.mark.parametrize(
    "options, words",
    [
        ({"dropout_p": 0.1}, "attn_mask with dropout_p"),
        ({"dtype": torch.float32}, "attn_mask with torch.float32"),
        ({"ndim": 3}, "attn_mask with other than 4 dimensions"),
        ({"kind": "numbers"}, "an attn_mask of numbers without a gradient"),
        ({"flash": False}, "flash attention, as which fa3 is registered, is switched off"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_what_fa3_does_not_take_runs_on_torch_with_one_warning(device, calls, options, words):
    tensors = [t.detach() for t in qkv(device, options.get("dtype", torch.bfloat16))]
    mask = mask_of(options.get("kind", "booleans"), (QUERIES, KEYS), device)
    if options.get("ndim") == 3:
        tensors = [t[:, 0] for t in tensors]
    backends = [registry.SDPBackend.MATH]
    backends += [registry.SDPBackend.FLASH_ATTENTION] if options.get("flash", True) else []
    given = {"attn_mask": mask, "dropout_p": options.get("dropout_p", 0.0), "enable_gqa": True}
    with front.sdpa(), registry.sdpa_kernel(backends), pytest.warns(UserWarning, match=words):
        out = F.scaled_dot_product_attention(*tensors, **given)
    assert not calls and out.isfinite().all()


def test_compiled_programs_have_the_same_results(device, calls):
    tensors, mask = qkv(device), mask_of("booleans", (QUERIES, KEYS), device)

    def program(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    with front.sdpa():
        compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            inferred = compiled(*tensors, mask)
        recorded = compiled(*tensors, mask)
        gradients = torch.autograd.grad(recorded.float().square().sum(), tensors)
    expected = in_float64(tensors, mask)
    for a, b in zip((recorded, *gradients), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=0.02 * b.abs().max().item())
    torch.testing.assert_close(inferred, recorded, rtol=0, atol=0.02)


def test_one_map_serves_all_layers_of_a_step(device, calls, monkeypatch):
    from fa3 import masks
    from fa3.flex.kept import table

    table.clear()
    made = []
    dense = masks.from_dense
    monkeypatch.setattr(masks, "from_dense", lambda *a, **k: made.append(1) or dense(*a, **k))
    tensors, mask = qkv(device), mask_of("booleans", (BATCH, 1, QUERIES, KEYS), device)
    with front.sdpa(), torch.no_grad():
        for _ in range(3):
            F.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)
        assert len(made) == 1
        mask.logical_not_()
        other = F.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)
    assert len(made) == 2
    torch.testing.assert_close(other.double(), in_float64(tensors, mask)[0], rtol=0, atol=0.02)
