# SPDX-License-Identifier: Apache-2.0
"""Where modules register that are imported with the first call that needs them."""

from typing import Any

torch = None  # fa3.torch, once it is imported completely
flex: Any = None  # what fa3.flex.entry makes of fa3.flex, by load_flex()
load_flex: Any = None
attention_fp8 = None  # the function, which imports fa3.torch
fp8_sampler: Any = None  # the function that gives what samples FP8's error, or None
