# SPDX-License-Identifier: Apache-2.0
"""The tests of torch and JAX that run with fa3 in the place of their own attention. Each suite says
which tests ask for attention, which cannot pass, and how fa3 is put there. Next: peer_tests.py."""

import contextlib
import functools
import os
import re
from collections.abc import Callable
from typing import NamedTuple


class Suite(NamedTuple):
    asks: str  # a pattern of the names of tests, "Class.test", that ask for attention
    # A pattern of names of tests -> why they cannot pass with fa3: run without it alone.
    left_out: dict[str, str]
    prepare: Callable  # (device): before the file is imported
    with_fa3: Callable  # (tests: the file's module) -> a context, in which fa3 runs; its Calls
    answers: tuple[tuple[str, object], ...] = ()  # functions of the file, and what they return then

    def why_left_out(self, name):
        return next((why for of, why in self.left_out.items() if re.search(of, name)), None)


class Calls:
    """How many calls fa3 took, and how many it left to the peer's own attention."""

    taken = left = 0


def prepare_torch(device):
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = device


@contextlib.contextmanager
def torch_with_fa3(tests):
    """torch's operators, with the switch on. Counted are kernels that ran to their end."""
    import fa3.torch
    from fa3.torch import aten_kernels, switch

    calls = Calls()

    def counted(kernel):
        @functools.wraps(kernel)
        def run(**arguments):
            try:
                result = kernel(**arguments)
            except (aten_kernels.Refused, fa3.Error):
                calls.left += 1
                raise
            calls.taken += 1
            return result

        return run

    tables = switch.KERNELS, switch.BACKWARDS, switch.WITH_MASK, switch.WITH_DROPOUT
    before = [dict(table) for table in tables]
    for table in tables:
        for name, (key, kernel, *more) in table.items():
            table[name] = (key, counted(kernel), *more)
    try:
        with fa3.torch.sdpa():
            yield calls
    finally:
        for table, kernels in zip(tables, before, strict=True):
            table.update(kernels)


def prepare_jax(device):
    os.environ["JAX_PLATFORMS"] = device
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@contextlib.contextmanager
def jax_with_fa3(tests):
    """jax.nn.dot_product_attention with an implementation by name is fa3's; without one JAX's own,
    which the tests compare with."""
    import jax

    import fa3.jax

    calls, own = Calls(), jax.nn.dot_product_attention

    @functools.wraps(own)
    def attention(query, key, value, bias=None, mask=None, *, implementation=None, **options):
        given = query, key, value, bias, mask
        if implementation is None:
            return own(*given, **options)
        try:
            result = by_fa3(*given, **options)
        except (NotImplementedError, fa3.Error):
            calls.left += 1
            return own(*given, **options)
        calls.taken += 1
        return result

    jax.nn.dot_product_attention = attention
    try:
        yield calls
    finally:
        jax.nn.dot_product_attention = own


def by_fa3(
    query,
    key,
    value,
    bias,
    mask,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
    return_residual=False,
):
    """jax.nn.dot_product_attention by fa3.jax; NotImplementedError for what that has not."""
    import jax

    import fa3.jax

    if bias is not None or mask is not None:
        raise NotImplementedError("bias and mask")
    if is_causal and query.shape[-3] != key.shape[-3]:
        raise NotImplementedError("is_causal over different lengths, which JAX aligns top-left")
    if query_seq_lengths is not None and (is_causal or local_window_size is not None):
        raise NotImplementedError("lengths beside a mask, which JAX aligns top-left")
    window = local_window_size
    if window is not None:
        window = (window, window) if isinstance(window, int) else window
    is_one = query.ndim == 3
    q, k, v = (x[None] if is_one else x for x in (query, key, value))
    out, lse = fa3.jax.attention(
        q,
        k,
        v,
        scale=scale,
        causal=is_causal,
        window=window or (None, None),
        seqused_q=query_seq_lengths,
        seqused_k=key_value_seq_lengths,
        return_lse=True,
    )
    lse = jax.lax.stop_gradient(lse.swapaxes(-1, -2).astype(query.dtype))  # as JAX's own
    out, lse = (out[0], lse[0]) if is_one else (out, lse)
    return (out, lse) if return_residual else out


SUITES = {
    "test/test_transformers.py": Suite(
        "SDPA|Attn|Attention",
        {
            r"(flash|fused|product)_attention.*dropout_p_(0_(?!0(_|$))|[1-9])": (
                "compares with the mask of torch's own dropout"
            ),
            "backwards_throws_determinism_warning.*(FLASH|fused_kernel0)": (
                "expects torch's warning, for which fa3 has no cause"
            ),
        },
        prepare_torch,
        torch_with_fa3,
    ),
    "tests/nn_test.py": Suite(
        "DotProductAttention",
        {},
        prepare_jax,
        jax_with_fa3,
        (("_check_cudnn_backend", True),),
    ),
}
