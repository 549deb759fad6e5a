# SPDX-License-Identifier: Apache-2.0
"""fa3 for torch: differentiable attention, registered operators, and the switch for SDPA.

Imported by `import fa3.torch`, or by the first fa3.attention call on a torch tensor. Importing
registers torch.ops.fa3.* and the name "fa3" in torch's registry of flash attentions; torch's own
attention stays as it is until enable_sdpa().
"""

import sys

import torch

from fa3 import _backends
from fa3.errors import Unsupported

if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    raise Unsupported(f"fa3.torch: expected torch 2.10 or later, got torch {torch.__version__}")

from fa3.torch import flops as flops
from fa3.torch import mla as mla
from fa3.torch import sparse as sparse
from fa3.torch.append import append as append
from fa3.torch.autograd import attend as attend
from fa3.torch.autograd import gradients as gradients
from fa3.torch.autograd import to_autocast_type as to_autocast_type
from fa3.torch.checks import refuse_numbers_that_learn as refuse_numbers_that_learn
from fa3.torch.fp8 import attend_fp8 as attend_fp8
from fa3.torch.fp8_samples import add_sample as add_sample
from fa3.torch.fp8_samples import has_fp8_sampler as has_fp8_sampler
from fa3.torch.fp8_samples import wait_for_samples as wait_for_samples
from fa3.torch.library import needs_gradient as needs_gradient
from fa3.torch.merge import merge as merge
from fa3.torch.public import attend_with_bias as attend_with_bias
from fa3.torch.public import attention
from fa3.torch.quantize import quantize as quantize
from fa3.torch.quantize import quantize_together as quantize_together
from fa3.torch.switch import disable_sdpa, enable_sdpa, register, sdpa

__all__ = ["attention", "disable_sdpa", "enable_sdpa", "sdpa"]


def __dir__():
    return __all__


register()
_backends.torch = sys.modules[__name__]
