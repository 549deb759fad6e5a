# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way into the library and out of it: views of inputs, memory for outputs.

The compiled module views any object with __dlpack__ by itself. NumPy's own DLPack refuses bfloat16
and float8 (types of ml_dtypes), so its arrays are described here.
"""

import functools
import sys

import numpy as np

from fa3.errors import InvalidArgument, Unsupported

CPU, CUDA = 1, 2  # fa3_device_type
INT32 = -(2**31), 2**31 - 1


def is_torch(array):
    """Does not import torch: a caller with a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def refuse_tracer(array, name):
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.core.Tracer):
        raise Unsupported(
            f"{name}: expected an array with values, got a tracer of JAX; inside of jax.jit, "
            "jax.grad and jax.vmap call fa3.jax.attention (import fa3.jax)"
        )


def no_array(array, name):
    return TypeError(
        f"{name}: expected an array (numpy, torch, or any object with __dlpack__), got "
        f"{type(array).__name__}"
    )


def shape_of(array, name):
    if not hasattr(array, "shape"):
        raise no_array(array, name)
    refuse_tracer(array, name)
    return array.shape


def view(array, name):
    """What the compiled module accepts for `array`: a description, or the array itself."""
    if isinstance(array, np.ndarray):
        return numpy_view(array, name)
    refuse_tracer(array, name)
    if not hasattr(array, "__dlpack__"):
        raise no_array(array, name)
    if is_torch(array) and array.is_neg():
        return array.resolve_neg()  # its memory holds the values without their sign
    if is_of_jax(array):
        refuse_sharded(array, name)
    return array


def refuse_sharded(array, name):
    """array: of JAX, which exports no array of several devices."""
    devices = len(array.sharding.device_set)
    if devices > 1:
        raise Unsupported(
            f"{name}: expected an array on one device, got one on {devices}; call "
            "fa3.jax.attention, which computes on each device, or gather it (jax.device_put to one)"
        )


def is_meta(array):
    return is_torch(array) and array.is_meta


def is_fake(array):
    """A tensor of a tracer, without memory."""
    return is_torch(array) and sys.modules["torch"]._subclasses.fake_tensor.is_fake(array)


def question_view(array, name, device=None):
    """view() for questions, which read no memory: torch's meta tensors are described.

    device: that these stand for; None: torch's GPU if it has one, else the CPU.
    """
    if not is_meta(array):
        return view(array, name)
    torch = sys.modules["torch"]
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    place = (CUDA, device.index or 0) if device.type == "cuda" else (CPU, 0)
    return 0, type_of(array), *place, tuple(array.shape), tuple(array.stride())


def optional_view(array, name):
    return None if array is None else view(array, name)


def output_view(array, name):
    """view() of memory that the library writes."""
    if isinstance(array, np.ndarray):
        if not array.flags.writeable:
            raise InvalidArgument(
                f"{name}: expected memory that may be written, got a read-only array"
            )
        return numpy_view(array, name)
    if is_torch(array):
        refuse_negated(array, name)
    if is_of_jax(array):
        raise InvalidArgument(
            f"{name}: expected memory that may be written, got an array of JAX, which never change"
        )
    return view(array, name)


def library_of(array):
    return type(array).__module__.partition(".")[0]


def is_of_jax(array):
    return library_of(array) in ("jax", "jaxlib")


def refuse_negated(tensor, name):
    if tensor.is_neg():
        raise InvalidArgument(
            f"{name}: expected memory that holds its values, got a lazily negated view; pass "
            "its resolve_neg()"
        )


def refuse_masked(array, name):
    """Subclasses of NumPy's arrays are taken for their elements, which these hide."""
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(
            f"{name}: expected an array without a mask, got a numpy.ma.MaskedArray; pass what its "
            "filled() returns"
        )


def numpy_view(array, name):
    if type(array) is not np.ndarray:
        refuse_masked(array, name)
    dtype, itemsize = array.dtype, array.itemsize
    if not dtype.isnative:
        raise InvalidArgument(f"{name}: expected native byte order, got {dtype!r}; convert it")
    if not array.flags.c_contiguous and any(step % itemsize for step in array.strides):
        raise InvalidArgument(
            f"{name}: expected strides that are multiples of the {itemsize} bytes of {dtype}, got "
            f"{array.strides}; copy it"
        )
    address = array.__array_interface__["data"][0]
    strides = tuple([step // itemsize for step in array.strides])
    return address, type_name(dtype), CPU, 0, array.shape, strides, array  # kept while it is used


@functools.cache  # NumPy takes a microsecond to make the name
def type_name(dtype):
    return dtype.name


def numpy_type(name):
    """NumPy's dtype of that name; the types that NumPy lacks are those of ml_dtypes."""
    if name not in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidArgument(
            f"expected the package ml_dtypes for NumPy arrays of {name}, got none; install it, or "
            "pass out= in another type"
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


def type_of(array):
    """The name of an array's element type: float16, float8_e4m3fn, ..."""
    if isinstance(array, np.ndarray):
        return type_name(array.dtype)
    return str(getattr(array, "dtype", None)).removeprefix("torch.")


def in_int32(integers):
    """Lengths and tables: int64 as int32, on its device. Numbers that do not fit stay wrong."""
    if is_torch(integers):
        torch = sys.modules["torch"]
        if integers.dtype is not torch.int64:
            return integers
        return integers.clamp(*INT32).to(torch.int32)
    return integers.clip(*INT32).astype("int32") if type_of(integers) == "int64" else integers


def empty(shape, like, dtype=None):
    """A new array from the library that `like` comes from, on its device."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, numpy_type(dtype) if dtype else like.dtype)
    if hasattr(like, "new_empty"):  # torch, which has no __array_namespace__
        return like.new_empty(shape, dtype=dtype and getattr(sys.modules["torch"], dtype))
    if is_cupy(like):
        with like.device:
            dtype = numpy_type(dtype) if dtype else like.dtype
            return sys.modules["cupy"].empty(shape, dtype)
    if not hasattr(like, "__array_namespace__"):
        raise InvalidArgument(
            f"out: expected an array to write to, since a {type(like).__name__} has no "
            "__array_namespace__ to make one with; pass out= (and dq=, ... for gradients)"
        )
    namespace = like.__array_namespace__()
    dtype = like.dtype if dtype is None else getattr(namespace, dtype)
    return namespace.empty(shape, dtype=dtype, device=like.device)


def is_cupy(array):
    """CuPy's arrays do not all have an __array_namespace__."""
    return library_of(array) == "cupy" and "cupy" in sys.modules


def lender(array):
    """What allocates workspace on the array's device, from its own library; None for NumPy.

    The device's number, its second argument, is the array's.
    """
    if isinstance(array, np.ndarray):
        return None

    def lend(count, _):
        memory = empty((count,), array, "uint8")
        return memory, address_of(memory)

    return lend


def address_of(array):
    if is_cupy(array):
        return array.data.ptr
    for name in ("data_ptr", "unsafe_buffer_pointer"):  # torch, JAX
        if hasattr(array, name):
            return getattr(array, name)()
    raise InvalidArgument(
        f"workspace: expected arrays of torch, CuPy or JAX, whose addresses are known, got a "
        f"{type(array).__name__}"
    )
