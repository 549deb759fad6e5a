# SPDX-License-Identifier: Apache-2.0
"""What the command fa3 does in Python. Everything else is the C++ command's (fa3/__main__.py)."""
