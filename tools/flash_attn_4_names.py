# SPDX-License-Identifier: Apache-2.0
"""What FlashAttention-4's tests of masks and score functions import, on fa3.

Their functions are written in CuTe's language for Python. Here its names work on the scalars that
fa3.flex_attention traces, a vector of them being one: so what runs is the tests' own functions, not
the copies in torch that the tests compare with. Next: flash_attn_tests.py, which runs the tests.
"""

import functools
import inspect
import types
import warnings
from typing import NamedTuple

import torch


class Value:
    """A traced scalar of torch, or a number, under the names that CuTe has for vectors."""

    shape = (1,)

    def __init__(self, torchs):
        self.torchs = torchs

    @property
    def dtype(self):
        return next((t for t in TYPES.values() if t.dtype == self.torchs.dtype), None)

    def __getitem__(self, lane):
        return self

    def to(self, kind):
        return kind(self)


def operator_of(name):
    def applied(self, *others):
        return Value(getattr(self.torchs, name)(*(plain(x) for x in others)))

    return applied


for name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "neg", "abs"),
    *("and", "rand", "or", "ror", "xor", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
):
    setattr(Value, f"__{name}__", operator_of(f"__{name}__"))


def plain(value):
    return value.torchs if isinstance(value, Value) else value


class Kind:
    """A type of CuTe's: converts values and numbers."""

    def __init__(self, dtype, of_numbers):
        self.dtype, self.of_numbers = dtype, of_numbers

    def __call__(self, value):
        if isinstance(value, Value):
            return Value(value.torchs.to(self.dtype))
        return self.of_numbers(value)


TYPES = {
    "Float32": Kind(torch.float32, float),
    "Float16": Kind(torch.float16, float),
    "BFloat16": Kind(torch.bfloat16, float),
    "Int32": Kind(torch.int32, int),
    "Uint32": Kind(torch.int64, int),
    "Boolean": Kind(torch.bool, bool),
}


class Fragment(list):
    """Registers: of one lane each time."""

    shape = (1,)

    def store(self, value):
        self[:] = [value] * len(self)

    def load(self):
        return self[0]


class Captured:
    """A captured tensor, indexed by values."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.element_type = next((t for t in TYPES.values() if t.dtype == tensor.dtype), None)

    def __getitem__(self, indices):
        indices = indices if isinstance(indices, tuple) else (indices,)
        return Value(self.tensor[tuple(plain(i) for i in indices)])


def on_values(function):
    return lambda *values: Value(function(*(plain(x) for x in values)))


def same(function):
    return function


def not_here(*_, **__):
    raise NotImplementedError("a part of FlashAttention-4 that fa3 has no counterpart of")


class Namespace(types.ModuleType):
    def __init__(self, name, **names):
        super().__init__(name)
        self.__dict__.update(names)


def in_registers(count, dtype=None):
    return Fragment([None] * (count if isinstance(count, int) else count[0]))


def least(a, b):
    return Value(torch.where(plain(a) < plain(b), plain(a), plain(b)))


def cutlass():
    cute = Namespace(
        "cutlass.cute",
        jit=same,
        where=on_values(torch.where),
        full_like=lambda like, number: number,
        size=lambda shape: 1,
        make_rmem_tensor=in_registers,
        TensorSSA=type("TensorSSA", (), {"__new__": lambda cls, value, *_: value}),
        math=Namespace("cutlass.cute.math", exp2=on_values(torch.exp2)),
    )
    of_integers = Namespace("cutlass._mlir.dialects.math", absi=on_values(torch.abs))
    dialects = Namespace("cutlass._mlir.dialects", math=of_integers)
    mlir = Namespace("cutlass._mlir", dialects=dialects)
    whole = Namespace("cutlass", cute=cute, _mlir=mlir, range_constexpr=range, min=least, **TYPES)
    parts = whole, cute, mlir, dialects, of_integers
    return {part.__name__: part for part in parts}


def as_python(function, q, k, aux_tensors, aux_scalars):
    """A function of theirs, of a score or a mask, as flex_attention calls one."""
    if function is None:
        return None
    info = types.SimpleNamespace(seqlen_q=q.shape[1], seqlen_k=k.shape[1], offset_q=0, offset_k=0)
    beside = info, [Captured(t) for t in aux_tensors or ()]
    if "aux_scalars" in inspect.signature(function).parameters:
        beside = (*beside, aux_scalars)
    return lambda *scalars: plain(function(*(Value(s) for s in scalars), *beside))


def block_mask_of(lists, mask_mod, q, k):
    from torch.nn.attention.flex_attention import BlockMask

    if lists.block_size is None:
        raise NotImplementedError("lists without a block size")
    return BlockMask.from_kv_blocks(
        lists.mask_block_cnt,
        lists.mask_block_idx,
        lists.full_block_cnt,
        lists.full_block_idx,
        BLOCK_SIZE=lists.block_size,
        mask_mod=mask_mod or (lambda b, h, q, k: q >= 0),
        seq_lengths=(q.shape[1], k.shape[1]),
    )


def attend(
    q,
    k,
    v,
    *,
    softmax_scale=None,
    causal=False,
    window=(None, None),
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    lists=None,
):
    """(out, lse). Falls back to nothing: a call without a kernel fails."""
    import fa3
    from fa3.flex.device import SlowScores

    as_python_of = functools.partial(
        as_python, q=q, k=k, aux_tensors=aux_tensors, aux_scalars=aux_scalars
    )
    mask_mod = as_python_of(mask_mod)
    masks = {"mask_mod": mask_mod} if lists is None else {
        "block_mask": block_mask_of(lists, mask_mod, q, k)
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowScores)
        return fa3.flex_attention(
            q, k, v, score_mod=as_python_of(score_mod), causal=bool(causal), window=window,
            scale=softmax_scale, return_lse=True, **masks,
        )  # fmt: skip


# What changes no result of theirs, or how they compute it.
WITHOUT_EFFECT = {
    *("pack_gqa", "tile_mn", "m_block_size", "n_block_size", "return_lse", "_arch", "num_splits"),
    *("score_mod_bwd", "block_sparse_tensors_bwd", "deterministic"),
}
TAKEN = "softmax_scale", "causal", "score_mod", "mask_mod", "aux_tensors", "aux_scalars"


def options_of(named):
    options = {name: named.pop(name) for name in TAKEN if name in named}
    window = named.pop("window_size", None) or (None, None)
    sides = (named.pop("window_size_left", None), named.pop("window_size_right", None))
    for name, value in named.items():
        if name not in WITHOUT_EFFECT and value is not None:
            raise NotImplementedError(f"{name}={value!r}")
    options["window"] = window if sides == (None, None) else sides
    return options


def flash_attn_func(q, k, v, block_sparse_tensors=None, **named):
    return attend(q, k, v, lists=block_sparse_tensors, **options_of(named))


@torch.no_grad()
def _flash_attn_fwd(q, k, v, out=None, lse=None, block_sparse_tensors=None, **named):
    made = attend(q, k, v, lists=block_sparse_tensors, **options_of(named))
    given = [m if g is None else g.copy_(m) for g, m in zip((out, lse), made, strict=True)]
    return tuple(given)


def _flash_attn_bwd(q, k, v, out, dout, lse, block_sparse_tensors=None, **named):
    """By autograd."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    lists = block_sparse_tensors
    if lists is not None:
        lists = types.SimpleNamespace(block_size=lists.block_size, **of_key_blocks(lists))
    made, _ = attend(*leaves, lists=lists, **options_of(named))
    return torch.autograd.grad(made, leaves, dout)


def of_key_blocks(lists):
    """Their backward has lists of query blocks; these are of key blocks."""
    found = {}
    for kind in ("mask", "full"):
        counts, indices = getattr(lists, f"{kind}_block_cnt"), getattr(lists, f"{kind}_block_idx")
        listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        columns = torch.where(listed, indices, indices.shape[-1]).long()
        marks = torch.zeros(*indices.shape[:-1], indices.shape[-1] + 1, device=indices.device)
        marks = marks.scatter_(-1, columns, 1.0)[..., :-1].transpose(-1, -2)
        found[f"{kind}_block_cnt"], found[f"{kind}_block_idx"] = lists_of(marks > 0)
    return found


def lists_of(marks):
    """(counts, indices) of a boolean map's rows."""
    order = marks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return marks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def compute_block_sparsity(
    tile_m, tile_n, batch_size, num_heads, seqlen_q, seqlen_k, mask_mod, aux_tensors=None,
    device="cuda", aux_scalars=None, cu_seqlens_q=None, use_fast_sampling=False, **_,
):  # fmt: skip
    """Their lists of tiles, read off the map and the bits that fa3 makes of the mask."""
    from fa3.flex import lists
    from fa3.flex.call import EVERY_KEY
    from fa3.flex.known_functions import function_of

    if cu_seqlens_q is not None:
        raise NotImplementedError("lists of packed sequences")
    q = torch.empty((batch_size, seqlen_q, num_heads, 8), device=device)
    k = torch.empty((batch_size, seqlen_k, num_heads, 8), device=device)
    rule = as_python(mask_mod, q, k, aux_tensors, aux_scalars)
    extents = lists.Extents(batch_size, seqlen_q, seqlen_k)
    hides = function_of(None, rule)
    blocks, bits = lists.of_function(*hides, EVERY_KEY, extents, num_heads, q.device)
    shifts = torch.arange(32, device=device)
    # Entry n > 0 names bits n - 1; -1 and 0 get a block of ones and of zeros at the end.
    pairs = ((bits[..., None] >> shifts) & 1).reshape(-1, 128, 128).bool()
    ends = torch.stack([torch.zeros_like(pairs[0]), torch.ones_like(pairs[0])])
    number = torch.where(blocks > 0, blocks.long() - 1, len(pairs) - blocks.long())
    tiles = torch.cat([pairs, ends])[number]
    seen = tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)[..., :seqlen_q, :seqlen_k]
    seen = seen.expand(batch_size, num_heads, -1, -1)
    spare = (0, -seqlen_k % tile_n, 0, -seqlen_q % tile_m)
    by_tile = torch.nn.functional.pad(seen, spare).unflatten(-1, (-1, tile_n))
    by_tile = by_tile.unflatten(2, (-1, tile_m)).transpose(3, 4)
    whole, some = by_tile.flatten(-2).all(-1), by_tile.flatten(-2).any(-1)
    return Lists(*lists_of(some & ~whole), *lists_of(whole))


class Lists(NamedTuple):
    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor
    full_block_idx: torch.Tensor


def modules():
    """By name, beside cutlass()."""

    class BlockSparseTensorsTorch(types.SimpleNamespace):
        def __init__(self, block_size=None, **tensors):
            super().__init__(block_size=block_size, **tensors)

    def scalar_to_ssa(value, kind):
        return kind(value)

    internals = (
        *("block_sparse_bwd_supports_2cta", "get_kv_subtile_factor", "compute_dq_write_order"),
        *("normalize_block_sparse_config_bwd", "compute_dq_write_order_from_block_mask"),
    )
    interface = Namespace(
        "flash_attn.cute.interface",
        _flash_attn_fwd=_flash_attn_fwd,
        _flash_attn_bwd=_flash_attn_bwd,
        flash_attn_func=flash_attn_func,
        _tile_size_bwd_sm90=not_here,
    )
    sparsity = Namespace(
        "flash_attn.cute.block_sparsity",
        BlockSparseTensorsTorch=BlockSparseTensorsTorch,
        fast_sampling=same,
        **dict.fromkeys(internals, not_here),
    )
    cache = Namespace("flash_attn.cute.cache_utils", get_jit_cache=not_here, JITCache=not_here)
    compute = Namespace(
        "flash_attn.cute.compute_block_sparsity", compute_block_sparsity=compute_block_sparsity
    )
    utils = Namespace("flash_attn.cute.utils", scalar_to_ssa=scalar_to_ssa)
    cute = Namespace("flash_attn.cute", utils=utils)
    parts = cute, interface, sparsity, cache, compute, utils, Namespace("flash_attn", cute=cute)
    torch.compile = lambda function, **_: function  # of the tests' flex_attention: minutes
    return cutlass() | {part.__name__: part for part in parts}
