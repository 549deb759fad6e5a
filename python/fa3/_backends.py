# SPDX-License-Identifier: Apache-2.0
"""Where fa3.torch registers itself, so that the public functions can do without torch."""

torch = None  # the module fa3.torch, once it is imported completely
