# SPDX-License-Identifier: Apache-2.0
"""The options of a call, from names to the order in which python/native/module.cpp reads them."""

from fa3._arrays import view
from fa3.errors import InvalidArgument

# fa3_engine_id
ENGINES = {"auto": 0, "cpu": 1, "reference": 2, "standard": 3, "hopper": 4}


def engine_id(name):
    if name in ENGINES:
        return ENGINES[name]
    raise InvalidArgument(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")


def native_options(
    *,
    causal=False,
    window=(-1, -1),
    softcap=0.0,
    scale=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    deterministic=False,
    engine="auto",
    num_threads=0,
):
    """As read_options() in python/native/module.cpp."""
    left, right = window
    return (
        view(cu_seqlens_q, "cu_seqlens_q"),
        view(cu_seqlens_k, "cu_seqlens_k"),
        view(seqused_q, "seqused_q"),
        view(seqused_k, "seqused_k"),
        max_seqlen_q,
        max_seqlen_k,
        causal,
        left,
        right,
        softcap,
        scale,
        deterministic,
        engine_id(engine),
        num_threads,
    )
