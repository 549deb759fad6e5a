# SPDX-License-Identifier: Apache-2.0
from typing import Any, TypeVar, overload

import numpy as np

Tensor = TypeVar("Tensor")

@overload
def dropout_mask(
    dropout_p: float,
    dropout_seed: tuple[int, int],
    shape: tuple[int, int, int, int],
    *,
    first: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> np.ndarray[Any, np.dtype[np.bool_]]: ...
@overload
def dropout_mask(
    dropout_p: float,
    dropout_seed: Tensor,
    shape: tuple[int, int, int, int],
    *,
    first: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Tensor: ...
def pair(seed: Any) -> list[int]: ...
def words(seed: Any) -> Any: ...
def seed_view(seed: Any) -> Any: ...
def require_seed(named: dict[str, Any]) -> None: ...
def refuse_seed(seed: Any) -> None: ...
def refuse_other_than_probability(p: Any) -> None: ...
