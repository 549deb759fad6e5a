# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: the device they run on, and how they skip.

A test that takes `device` runs on the CPU and, where torch has one, on a GPU. What Hopper
does not do yet raises fa3.Unsupported with one of the sentences below: such a test is skipped
with that sentence, and lights up by itself when the engine learns it. Any other sentence is a
failure, a capability lost; so is the error itself on the CPU.

Tests in all folders import the modules beside this file, whose folder pytest puts on the path. So
no folder here may have the name of a package that tests look for: `import torch` would find it.
"""

import os
import re

import pytest

# Read when JAX starts, with the first test that needs it. Sharding wants more devices than one. A
# GPU is for tests that ask for it by name, and its memory for those of torch too.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
os.environ["JAX_DEFAULT_DEVICE"] = "cpu"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

NOT_ON_HOPPER = re.compile(
    "float32 is not among its element types"
    "|gradients where head dims are no multiples of 8"
    "|(address is not a multiple|strides must be positive multiples) of 16 bytes"
)


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", "cuda"], indirect=True)


# FA3_TEST_SHARD=2/8: of the tests that were asked for, the third and each eighth after it.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    shard, _, shards = os.environ.get("FA3_TEST_SHARD", "0/1").partition("/")
    mine = items[int(shard) :: int(shards)]
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = mine


@pytest.fixture
def device(request):
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    return request.param


@pytest.fixture
def one_thread():
    """For tiny models: more threads would only wait for each other."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    try:
        return (yield)
    except Exception as error:
        reason = unsupported(error)
        on_gpu = pyfuncitem.funcargs.get("device") == "cuda"
        if on_gpu and reason is not None and NOT_ON_HOPPER.search(str(reason)):
            pytest.skip(str(reason))
        raise


def unsupported(error):
    """The fa3.Unsupported behind an error, which compilers and checkers wrap in their own."""
    while error is not None:
        if type(error).__name__ == "Unsupported" and type(error).__module__ == "fa3.errors":
            return error
        error = error.__cause__ or error.__context__
    return None
