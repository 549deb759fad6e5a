# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: the device they run on, and how they skip.

A test that takes `device` runs on the CPU and, where torch has one, on a GPU. What no engine does
there yet raises fa3.Unsupported: such a test is skipped with the library's sentence, and lights up
by itself when the engine learns it. On the CPU the same error is a failure.
"""

import pytest


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", "cuda"], indirect=True)


@pytest.fixture
def device(request):
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    try:
        return (yield)
    except NotImplementedError as error:
        on_gpu = pyfuncitem.funcargs.get("device") == "cuda"
        if on_gpu and type(error).__name__ == "Unsupported":
            pytest.skip(str(error))
        raise
