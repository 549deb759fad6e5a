# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.append: new rows of keys and values in a cache, within a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np

from fa3._arrays import in_int32, no_array
from fa3.jax import primitives  # noqa: F401  registers the calls

TENSORS = (
    *("k_cache", "v_cache", "k", "v", "cu_seqlens_new", "seqused", "page_table", "batch_index"),
    *("rotary_cos", "rotary_sin", "first_position", "q", "cu_seqlens_q", "k_descale", "v_descale"),
)
LENGTHS = (
    *("cu_seqlens_new", "seqused", "page_table", "batch_index", "first_position", "cu_seqlens_q"),
)


def append(
    k_cache,
    v_cache,
    k,
    v,
    *,
    seqused,
    cu_seqlens_new=None,
    page_table=None,
    batch_index=None,
    rotary_cos=None,
    rotary_sin=None,
    rotary_interleaved=False,
    first_position=None,
    q=None,
    cu_seqlens_q=None,
    queries_share_position=False,
    k_descale=None,
    v_descale=None,
    num_threads=0,
):
    """fa3.append for JAX: same arguments. Arrays of JAX never change, so it returns the caches.

    A program writes into the caches' own memory where nothing else reads them after it: give them
    to jax.jit with donate_argnames. Else XLA copies them first. Not differentiable; under
    jax.vmap it is a loop, and arrays that are cut over devices are gathered.

    Returns:
        (k_cache, v_cache), and q turned by the rotary embedding if there is a q.

    Raises:
        RuntimeError, ValueError: a wrong call, as the program runs, by JAX and with the library's
            sentence.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    arrays = {name: given[name] for name in TENSORS if name in given}
    for name, array in arrays.items():
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise no_array(array, name)
    arrays |= {name: in_int32(arrays[name]) for name in LENGTHS if name in arrays}
    arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
    written = {"k_cache": "k_cache", "v_cache": "v_cache"} | (
        {"q_rotated": "q"} if q is not None else {}
    )
    types = [jax.ShapeDtypeStruct(arrays[x].shape, arrays[x].dtype) for x in written.values()]
    call = jax.ffi.ffi_call(
        "fa3_append", types, input_output_aliases={0: 0, 1: 1}, vmap_method="sequential"
    )
    return tuple(
        call(
            *arrays.values(),
            operands=" ".join(arrays),
            results=" ".join(written),
            rotary_interleaved=np.bool_(rotary_interleaved),
            queries_share_position=np.bool_(queries_share_position),
            num_threads=np.int64(num_threads),
        )
    )
