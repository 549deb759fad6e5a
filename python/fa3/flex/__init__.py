# SPDX-License-Identifier: Apache-2.0
"""Score functions of the user's own: traced, differentiated, computed tile by tile.

attention.py has fa3.flex_attention, warm_up.py compiles for it; function/ has what its functions
are translated to.
"""

from fa3.flex.warm_up import warm_up

__all__ = ["warm_up"]
