# SPDX-License-Identifier: Apache-2.0
"""The calls of FlashAttention-4 that its tests of masks and score functions make, as calls of
fa3.flex_attention; and all modules that these tests import."""

import warnings

import torch
from torch.nn.attention import flex_attention

from flash_attn_names import cute, lists
from flash_attn_names.sequences import NAMES, sequences_of

# What changes no result of theirs, or how they compute it.
WITHOUT_EFFECT = {
    *("pack_gqa", "tile_mn", "m_block_size", "n_block_size", "return_lse", "_arch"),
    *("score_mod_bwd", "block_sparse_tensors_bwd", "deterministic"),
}
TAKEN = (
    *("softmax_scale", "causal", "score_mod", "mask_mod", "aux_tensors", "aux_scalars"),
    *("page_table", "num_splits"),
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
    block_sparse_tensors=None,
    page_table=None,
    num_splits=1,
    lengths,
):
    """(out, lse). Falls back to nothing: a call without a kernel fails. lengths: by name."""
    import fa3
    from fa3.flex.device import SlowScores

    sequences = sequences_of(q, k, page_table, lengths)
    score_mod, mask_mod = (
        sequences.as_python(f, aux_tensors, aux_scalars) for f in (score_mod, mask_mod)
    )
    masks = {"mask_mod": mask_mod}
    if block_sparse_tensors is not None:
        masks = {"block_mask": lists.block_mask_of(block_sparse_tensors, mask_mod, sequences)}
    of_cache = {"page_table": page_table, "num_splits": num_splits if num_splits > 1 else 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowScores)
        return fa3.flex_attention(
            q, k, v, score_mod=score_mod, causal=bool(causal), window=window, scale=softmax_scale,
            return_lse=True, **masks, **of_cache, **sequences.options(),
        )  # fmt: skip


def options_of(named):
    options = {name: named.pop(name) for name in TAKEN if name in named}
    options["lengths"] = {n: x for n in NAMES if (x := named.pop(n, None)) is not None}
    window = named.pop("window_size", None) or (None, None)
    sides = (named.pop("window_size_left", None), named.pop("window_size_right", None))
    for name, value in named.items():
        if name not in WITHOUT_EFFECT and value is not None:
            raise NotImplementedError(f"{name}={value!r}")
    options["window"] = window if sides == (None, None) else sides
    return options


def flash_attn_func(q, k, v, block_sparse_tensors=None, **named):
    return attend(q, k, v, block_sparse_tensors=block_sparse_tensors, **options_of(named))


@torch.no_grad()
def _flash_attn_fwd(q, k, v, out=None, lse=None, **named):
    made = flash_attn_func(q, k, v, **named)
    given = [m if g is None else g.copy_(m) for g, m in zip((out, lse), made, strict=True)]
    return tuple(given)


def _flash_attn_bwd(q, k, v, out, dout, lse, block_sparse_tensors=None, **named):
    """By autograd."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    if block_sparse_tensors is not None:
        block_sparse_tensors = lists.of_key_blocks(block_sparse_tensors)
    made, _ = flash_attn_func(*leaves, block_sparse_tensors=block_sparse_tensors, **named)
    return torch.autograd.grad(made, leaves, dout)


def not_here(*_, **__):
    raise NotImplementedError("a part of FlashAttention-4 that fa3 has no counterpart of")


def modules():
    """By name."""

    def scalar_to_ssa(value, kind):
        return kind(value)

    internals = (
        *("block_sparse_bwd_supports_2cta", "get_kv_subtile_factor", "compute_dq_write_order"),
        *("normalize_block_sparse_config_bwd", "compute_dq_write_order_from_block_mask"),
    )
    interface = cute.Namespace(
        "flash_attn.cute.interface",
        _flash_attn_fwd=_flash_attn_fwd,
        _flash_attn_bwd=_flash_attn_bwd,
        flash_attn_func=flash_attn_func,
        flash_attn_varlen_func=flash_attn_func,
        _tile_size_bwd_sm90=not_here,
    )
    sparsity = cute.Namespace(
        "flash_attn.cute.block_sparsity",
        BlockSparseTensorsTorch=lists.BlockSparseTensorsTorch,
        fast_sampling=cute.same,
        **dict.fromkeys(internals, not_here),
    )
    cache = cute.Namespace("flash_attn.cute.cache_utils", get_jit_cache=not_here, JITCache=not_here)
    compute = cute.Namespace(
        "flash_attn.cute.compute_block_sparsity",
        compute_block_sparsity=lists.compute_block_sparsity,
    )
    utils = cute.Namespace("flash_attn.cute.utils", scalar_to_ssa=scalar_to_ssa)
    of_cute = cute.Namespace("flash_attn.cute", utils=utils)
    whole = cute.Namespace("flash_attn", cute=of_cute)
    parts = of_cute, interface, sparsity, cache, compute, utils, whole
    # The tests' flex_attention compiled takes minutes, and refuses gradients that it has on CPUs.
    torch.compile = lambda function, **_: function
    flex_attention._validate_device = lambda *_: None
    return cute.cutlass() | {part.__name__: part for part in parts}
