# SPDX-License-Identifier: Apache-2.0
from fa3 import mla as mla
from fa3 import monitor as monitor
from fa3._dropout import dropout_mask as dropout_mask
from fa3._flex import flex_attention as flex_attention
from fa3.errors import CommunicationError as CommunicationError
from fa3.errors import DeviceError as DeviceError
from fa3.errors import Error as Error
from fa3.errors import InternalError as InternalError
from fa3.errors import InvalidArgument as InvalidArgument
from fa3.errors import OutOfMemory as OutOfMemory
from fa3.errors import Unsupported as Unsupported
from fa3.errors import WorkspaceTooSmall as WorkspaceTooSmall
from fa3.fp8 import Advice as Advice
from fa3.fp8 import advise as advise
from fa3.fp8 import attention_fp8 as attention_fp8
from fa3.ops import Gradients as Gradients
from fa3.ops import append as append
from fa3.ops import attention as attention
from fa3.ops import attention_backward as attention_backward
from fa3.ops import engines as engines
from fa3.ops import merge as merge
from fa3.ops import plan as plan
from fa3.ops import validate as validate
from fa3.quantization import Quantized as Quantized
from fa3.quantization import quantize as quantize

__version__: str
