# SPDX-License-Identifier: Apache-2.0
"""How far rounding may move each element: the tolerance of every comparison with the oracle.

The model follows the arithmetic of attention in a working precision with unit roundoff u and
bounds each step from its inputs, element by element. A sum of n products is off by gamma(n) times
the sum of their absolute values; gamma(n) = 4 sqrt(n) u is the probabilistic bound of Higham and
Mary (SIAM J. Sci. Comput. 41, 2019), which holds for n u when errors conspire. Nothing here is
fitted to a result.

Arrays as in oracle.py, in float64. `score_dtype` is the type in which an engine keeps S and P,
`out_dtype` that of o where it is not the inputs'.
"""

from typing import NamedTuple

import numpy as np
import oracle

FLOAT32 = 2.0**-24
ROUNDOFF = {"float32": FLOAT32, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Half the distance between the smallest numbers of the type: rounding error where u * |x| is less.
TINY = {"float32": 2.0**-149, "float16": 2.0**-25, "bfloat16": 2.0**-134}
LAMBDA = 4.0
FUNCTION_ULPS = 8  # what exp, log and tanh of a vector library may be off, in units of u


class Bounds(NamedTuple):
    o: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dsink: np.ndarray | None


def score_dtype_of(engine, dtype):
    """The type in which an engine keeps S and P for inputs of `dtype` (docs/numerics.md)."""
    in_input_dtype = engine in ("standard", "hopper") or (
        dtype == "bfloat16" and engine != "reference"
    )
    return dtype if in_input_dtype else "float32"


def gamma(n, u=FLOAT32):
    return LAMBDA * np.sqrt(max(n, 1)) * u


def bounds(q, k, v, do, *, dtype, out_dtype=None, score_dtype="float32", sink=None, **options):
    """Elementwise bounds for the forward and the backward pass (b, s, h, d) of one call."""
    out_dtype = out_dtype or dtype
    u_score = max(ROUNDOFF[score_dtype], FLOAT32)
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    o, lse = oracle.forward(q, k, v, sink=sink, **options)
    gradients = oracle.backward(q, k, v, do, sink=sink, **options)
    qh, doh, oh = (abs(x).swapaxes(1, 2) for x in (q, do, o))
    kh, vh = (np.repeat(abs(x).swapaxes(1, 2), group, axis=1) for x in (k, v))
    keys, dim, dim_v = kh.shape[2], qh.shape[-1], vh.shape[-1]
    p, s_abs, visible = _probabilities(q, k, lse, group, options)

    # S: dot product, scale (itself rounded), softcap, storage.
    ds_error = (gamma(dim) + (4 + FUNCTION_ULPS) * FLOAT32 + u_score) * s_abs
    ds_error = np.where(visible, ds_error, 0.0)
    row = ds_error.max(axis=-1, initial=0.0, keepdims=True)
    # P = exp(S - m) / sum: both move by exp of the score error; the sum has `keys` terms.
    p_error = np.expm1(2 * row) + gamma(keys) + 2 * FUNCTION_ULPS * FLOAT32 + u_score
    tiny_p = TINY[score_dtype]
    o_error = (p_error + gamma(keys)) * (p @ vh) + tiny_p * vh.sum(axis=-2, keepdims=True)
    finite_lse = np.where(np.isfinite(lse), abs(lse), 0.0)
    lse_error = row[..., 0] + gamma(keys) + FUNCTION_ULPS * FLOAT32 * (1 + finite_lse)
    o_bound = _stored(o_error.swapaxes(1, 2), o, out_dtype)

    # dS = P (dP - delta) softcap'; delta = rowsum(dO o) comes from the o that the forward stored.
    dp_abs = doh @ vh.swapaxes(-1, -2)
    delta_abs = (doh * oh).sum(axis=-1, keepdims=True)
    delta_error = (doh * o_bound.swapaxes(1, 2)).sum(axis=-1, keepdims=True)
    p_moves = p_error + lse_error[..., None] + u_score
    inner = p_moves * (dp_abs + delta_abs) + (gamma(dim_v) + u_score) * (dp_abs + delta_abs)
    cap_slope = _cap_slope_error(ds_error, options) * (dp_abs + delta_abs)
    g_error = p * (inner + delta_error + cap_slope) + tiny_p * (dp_abs + delta_abs)
    g_error = np.where(visible, g_error, 0.0)
    g_abs = p * (dp_abs + delta_abs)
    scale = options.get("scale") or dim**-0.5

    def product(error, absolute, other, terms):
        return error @ other + (gamma(terms) + 4 * FLOAT32) * (absolute @ other)

    dq_error = scale * product(g_error, g_abs, kh, keys)
    transposed = (x.swapaxes(-1, -2) for x in (g_error, g_abs, p * p_moves + tiny_p, p))
    gt_error, gt_abs, pt_error, pt = transposed
    terms = qh.shape[2] * group
    dk_error = scale * product(gt_error, gt_abs, qh, terms)
    dv_error = product(pt_error, pt, doh, terms)
    dsink_error = None
    if sink is not None:
        p_sink = np.exp(sink[:, None] - np.where(np.isneginf(lse), np.inf, lse))
        moves = lse_error + gamma(q.shape[0] * q.shape[1]) + gamma(dim_v) + p_error[..., 0]
        total = p_sink * (moves * delta_abs[..., 0] + delta_error[..., 0])
        dsink_error = _stored(total.sum(axis=(0, 2)), gradients[3], "float32")
    return Bounds(
        o=o_bound,
        lse=lse_error,
        dq=_stored(dq_error.swapaxes(1, 2), gradients[0], dtype),
        dk=_stored(_sum_group(dk_error, kv_heads), gradients[1], dtype),
        dv=_stored(_sum_group(dv_error, kv_heads), gradients[2], dtype),
        dsink=dsink_error,
    )


def _probabilities(q, k, lse, group, options):
    """P, the sum of |scale q.k| terms behind each score, and which scores count."""
    qh, kh = q.swapaxes(1, 2), np.repeat(k.swapaxes(1, 2), group, axis=1)
    scale = options.get("scale") or q.shape[-1] ** -0.5
    scores = scale * (qh @ kh.swapaxes(-1, -2))
    softcap = options.get("softcap", 0.0)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    names = ("causal", "window", "window_shift", "attention_chunk")
    mask = {name: options[name] for name in names if name in options}
    visible = oracle.visibility(q.shape[1], k.shape[1], **mask)
    shift = np.where(np.isneginf(lse), 0.0, lse)[..., None]
    p = np.where(visible, np.exp(np.where(visible, scores, -np.inf) - shift), 0.0)
    return p, scale * (abs(qh) @ abs(kh).swapaxes(-1, -2)) + abs(scores), visible


def _cap_slope_error(score_error, options):
    """The slope 1 - tanh^2 changes by at most 2 / cap per unit of score."""
    softcap = options.get("softcap", 0.0)
    return 2 * score_error / softcap + 4 * FUNCTION_ULPS * FLOAT32 if softcap else 0.0


def _stored(error, exact, dtype):
    """Adds the rounding of the result to its type."""
    return error + ROUNDOFF[dtype] * (abs(exact) + error) + TINY[dtype]


def _sum_group(per_query_head, kv_heads):
    b, hq, rows, dim = per_query_head.shape
    return per_query_head.reshape(b, kv_heads, hq // kv_heads, rows, dim).sum(2).swapaxes(1, 2)
