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
    which the tests compare with. Counted are calls that the library computes: a bias of floats is
    XLA's, also in fa3.jax."""
    import jax

    import fa3.jax
    from fa3.jax import vjp

    calls, own, run = Calls(), jax.nn.dot_product_attention, vjp.run
    passes = []  # of the library, traced so far

    def counted(call, operands):
        passes.append(call.direction)
        return run(call, operands)

    @functools.wraps(own)
    def attention(*given, implementation=None, **options):
        if implementation is None:
            return own(*given, **options)
        before = len(passes)
        try:
            result = fa3.jax.dot_product_attention(*given, **options)
        except fa3.Error:
            calls.left += 1
            return own(*given, **options)
        if len(passes) > before:
            calls.taken += 1
        else:
            calls.left += 1
        return result

    vjp.run, jax.nn.dot_product_attention = counted, attention
    try:
        yield calls
    finally:
        vjp.run, jax.nn.dot_product_attention = run, own


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
