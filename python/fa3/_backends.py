# SPDX-License-Identifier: Apache-2.0
"""Where modules register that are imported with the first call that needs them."""

torch = None  # fa3.torch, once it is imported completely
flex = None  # what fa3.flex.entry makes of fa3.flex
attention_fp8 = None  # the function, which imports fa3.torch
