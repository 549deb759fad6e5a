# SPDX-License-Identifier: Apache-2.0
"""The backward in e4m3 of docs/lab/fp8.md: float64, rounded to e4m3 where the kernels round.

Tensors are (batch, row, head, channel).
"""

import torch

LARGEST = 448.0
WEIGHT_TOP_LOG2 = 8.0
DS_ROOM = 1.75
LOG2_E = 1.4426950408889634


def e4m3(x):
    return x.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).double()


def by_head(x):
    return x.double().transpose(1, 2)


def dequantized(x, scales):
    """(b, s, h, d) of e4m3 and (b, h, blocks of 64 rows): (b, h, s, d)."""
    return by_head(x) * scales.double().repeat_interleave(64, 2)[:, :, : x.shape[1], None]


def columns(x):
    """Rounded with a scale for each channel of (b, kv head), which heads of a group share."""
    scale = x.abs().amax((2, 3), keepdim=True).clamp_min(2.0**-100) / LARGEST
    return e4m3(x / scale), scale[:, :, 0]


def pow2_above(x):
    return torch.ceil(torch.log2(x))


def gradients(quantized, descales, q, k, o, d_o, lse, scale, causal, k_mean=None):
    """(dq, dk, dv), float64, laid out as q, k and v.

    quantized, descales: of q, k and v. o: without v's mean. lse: of centred keys. k_mean: (b, kv
    heads, d), not turned.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    group = heads // kv_heads
    q8, k8, v8 = (dequantized(x, s) for x, s in zip(quantized, descales, strict=True))
    grouped = lambda x: x.unflatten(1, (kv_heads, group))  # noqa: E731
    q8, q, o, d_o = grouped(q8), *(grouped(by_head(x)) for x in (q, o, d_o))
    k8, v8, k = k8[:, :, None], v8[:, :, None], by_head(k)[:, :, None]
    if k_mean is not None:
        k = k - k_mean.double()[:, :, None, None]
    lse = (
        grouped(lse.double().nan_to_num(neginf=0.0))[..., None] * LOG2_E
    )  # -inf: a row without keys
    scores = scale * LOG2_E * q8 @ k8.mT
    if causal:
        m, n = scores.shape[-2:]
        hidden = torch.ones(m, n, dtype=torch.bool, device=q.device).triu(n - m + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    top = pow2_above((scores.amax(-1, keepdim=True) - lse).exp2()).clamp(-60, 1)
    norm = d_o.norm(dim=-1, keepdim=True)
    unit = torch.where(norm > 0, pow2_above(norm / LARGEST), 0.0).exp2()
    bound = DS_ROOM / (2 * LARGEST * v8.norm(dim=-1).amax(-1).clamp_min(2.0**-100))
    bound = bound[..., None, None]
    d_o8 = e4m3(d_o / unit)
    delta = (d_o8 * o).sum(-1, keepdim=True)
    p = (scores - lse - top + WEIGHT_TOP_LOG2).exp2()
    ds8 = e4m3(p * (d_o8 @ v8.mT - delta) * bound)
    p8 = e4m3(p)
    top = top.exp2()
    d_o_columns, d_o_scale = columns(d_o * top)
    q_columns, q_scale = columns(q * top * unit)
    k_columns, k_scale = columns(k)
    weight = 2.0**-WEIGHT_TOP_LOG2
    dv = (p8.mT @ d_o_columns).sum(2) * d_o_scale * weight
    dk = (ds8.mT @ q_columns).sum(2) * q_scale * (scale * weight) / bound[:, :, 0]
    dq = (ds8 @ k_columns) * k_scale[:, :, None] * (scale * weight * top * unit / bound)
    return dq.flatten(1, 2).transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
