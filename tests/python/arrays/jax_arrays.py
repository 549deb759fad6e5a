# SPDX-License-Identifier: Apache-2.0
"""Arrays that the tests of fa3.jax call it with."""

import numpy as np

PACKED = {
    "cu_seqlens_q": np.array([0, 3, 3, 8], np.int32),
    "cu_seqlens_k": np.array([0, 4, 6, 11], np.int32),
    "seqused_k": np.array([4, 0, 3], np.int32),
}


def random_arrays(*shapes, dtype=np.float32):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]
