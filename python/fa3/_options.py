# SPDX-License-Identifier: Apache-2.0
"""The options of a call, from names to the order in which python/native/module.cpp reads them."""

from fa3._arrays import optional_view
from fa3.errors import InvalidArgument

# fa3_engine_id
ENGINES = {"auto": 0, "cpu": 1, "reference": 2, "standard": 3, "hopper": 4}

DEFAULTS = {
    "causal": False,
    "window": (-1, -1),
    "attention_chunk": 0,
    "softcap": 0.0,
    "scale": None,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "seqused_q": None,
    "seqused_k": None,
    "max_seqlen_q": 0,
    "max_seqlen_k": 0,
    "deterministic": False,
    "batch_invariant": False,
    "engine": "auto",
    "num_threads": 0,
}

# Of attention alone: where keys lie in a cache, and into how many parts they are cut.
CACHE_DEFAULTS = {"page_table": None, "batch_index": None, "left_padding": None, "num_splits": 0}

# Of attention alone too: what float8_e4m3fn stands for.
SCALE_DEFAULTS = dict.fromkeys(("q_descale", "k_descale", "v_descale", "k_mean", "v_mean"))


def engine_id(name):
    if isinstance(name, str) and name in ENGINES:
        return ENGINES[name]
    raise InvalidArgument(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")


def window_ends(window, name="window"):
    try:
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name}: expected (left, right) in keys, -1 for unbounded, got {window!r}"
        ) from None
    return left, right


def complete(caller, options, defaults=DEFAULTS):
    """All options, given or default; `caller` is the function that they were given to."""
    for name in options:
        if name not in defaults:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    return defaults | options


def native_scales(options):
    """What Forward::read() in module.cpp reads before the options."""
    return [optional_view(options[name], name) for name in SCALE_DEFAULTS]


def native_cache(options):
    """What Forward::read() in module.cpp reads behind the options."""
    views = [optional_view(options[name], name) for name in list(CACHE_DEFAULTS)[:3]]
    return *views, options["num_splits"]


def native_options(options):
    """As read_options() in python/native/module.cpp, from complete() ones."""
    left, right = window_ends(options["window"])
    return (
        optional_view(options["cu_seqlens_q"], "cu_seqlens_q"),
        optional_view(options["cu_seqlens_k"], "cu_seqlens_k"),
        optional_view(options["seqused_q"], "seqused_q"),
        optional_view(options["seqused_k"], "seqused_k"),
        options["max_seqlen_q"],
        options["max_seqlen_k"],
        options["causal"],
        left,
        right,
        options["softcap"],
        options["scale"],
        options["deterministic"],
        engine_id(options["engine"]),
        options["num_threads"],
        options["attention_chunk"],
        options["batch_invariant"],
    )
