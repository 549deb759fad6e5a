# SPDX-License-Identifier: Apache-2.0
"""Attention in torch.onnx.export: torch's own attention. ONNX knows nothing of torch.ops.fa3.

Opset 23 has it as one operator, older opsets as a formula.
"""

import torch

from fa3._options import DEFAULTS, SCORES, Options
from fa3.errors import Unsupported
from fa3.torch.textbook import visible


def is_exporting():
    return torch.onnx.is_in_onnx_export()


# Dynamo takes torch's function for False. A marked function is called while Dynamo traces.
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def attention(q, k, v, options, return_lse, return_max_logit=False):
    """out of fa3.attention, for (b, s, h, d) tensors. options: in order."""
    options = Options(*options)
    names = list(DEFAULTS)[len(SCORES) :]
    given = [name for name in names if getattr(options, name) is not DEFAULTS[name]]
    given += ["return_lse"] if return_lse else []
    given += ["return_max_logit"] if return_max_logit else []
    given += ["softcap"] if options.softcap else []
    if given:
        raise Unsupported(
            f"{', '.join(given)}: expected the default in torch.onnx.export, which writes torch's "
            "scaled_dot_product_attention"
        )
    seen = visible(q.shape[1], k.shape[1], options, q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=options.scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.where(seen.any(-1)[:, None], 0.0).transpose(1, 2)
