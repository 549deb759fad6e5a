# SPDX-License-Identifier: Apache-2.0
"""What the tests of FlashAttention-2, -3 and -4 import, on fa3. First: suites.py."""
