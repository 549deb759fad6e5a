# SPDX-License-Identifier: Apache-2.0
"""Calls as type checkers see them: `make lint` checks this file, nothing runs it.

Each ignored error must be one, and each result must have the type that is asserted.
"""

from typing import Any

import numpy as np
from typing_extensions import assert_type

import fa3
import fa3.torch

Array = np.ndarray[Any, Any]


def results(q: Array, k: Array, v: Array, wants_lse: bool) -> None:
    assert_type(fa3.attention(q, k, v), Array)
    assert_type(fa3.attention(q, k, v, return_lse=True), tuple[Array, Array])
    assert_type(fa3.attention(q, k, v, return_lse=wants_lse), Array | tuple[Array, Array])
    assert_type(fa3.attention_fp8(q, k, v, seed=1), Array)
    assert_type(fa3.attention_fp8(q, k, v, return_lse=True), tuple[Array, Array])
    assert_type(fa3.attention_fp8(q, k, v, return_lse=wants_lse), Array | tuple[Array, Array])
    assert_type(fa3.quantize(q).descale, Array)
    assert_type(fa3.merge(q, k), tuple[Array, Array])
    assert_type(fa3.attention_backward(q, q, k, v, q, q).dq, Array)


def options(q: Array, k: Array, v: Array) -> None:
    fa3.attention(q, k, v, window=(3, 0), softcap=30.0, scale=None, engine="cpu")
    fa3.attention(q, k, v, window=[3, 0], sink=q, page_table=k, seqused_k=v, num_splits=2)
    fa3.attention(q, k, v, window=3)  # type: ignore[call-overload]
    fa3.attention(q, k, v, engine="gpu")  # type: ignore[call-overload]
    fa3.attention(q, k, v, is_causal=True)  # type: ignore[call-overload]
    fa3.attention_fp8(q, k, v, causal=True, window=[3, 0])
    fa3.attention_fp8(q, k, v, page_table=k)  # type: ignore[call-overload]
    fa3.attention_backward(q, q, k, v, q, q, num_splits=2)  # type: ignore[call-arg]


def switch() -> None:
    fa3.torch.enable_sdpa()
    with fa3.torch.sdpa("FA3"):
        fa3.torch.disable_sdpa()
    fa3.torch.enable_sdpa(1)  # type: ignore[arg-type]
