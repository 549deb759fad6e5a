# SPDX-License-Identifier: Apache-2.0
"""Score functions of the user's own: traced, differentiated, computed tile by tile.

attention.py has fa3.flex_attention; function/ what its functions are translated to.
"""

from fa3.flex.attention import attend as attend
