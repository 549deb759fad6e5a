# SPDX-License-Identifier: Apache-2.0
"""libnvrtc, with which the library compiles kernels at their first call."""

import ctypes
import functools
import importlib.util
from pathlib import Path


@functools.cache
def nvrtc_path():
    """libnvrtc of the package that torch brings; None: the library looks for one itself."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = sorted(Path(folder).glob("*/lib/libnvrtc.so.1*"))
        if found:
            return str(found[-1])
    return None


@functools.cache
def load_nvrtc():
    """Loads it, so that the library finds it by its name: for calls that cannot say where it is."""
    return nvrtc_path() and ctypes.CDLL(nvrtc_path())
