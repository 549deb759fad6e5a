# SPDX-License-Identifier: Apache-2.0
"""The declarations of python/native/xla_ffi.h, beside those of the header that jaxlib brings."""

import re

import builds
import pytest

jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

OURS = builds.ROOT / "python" / "native" / "xla_ffi.h"

# Our struct, XLA's struct, and their fields in pairs.
STRUCTS = {
    ("Extension", "Extension_Base"): "struct_size type next",
    ("ApiVersion", "Api_Version"): (
        "struct_size extensions:extension_start major:major_version minor:minor_version"
    ),
    ("ErrorCreate", "Error_Create_Args"): (
        "struct_size extensions:extension_start message code:errc"
    ),
    ("Buffer", "Buffer"): "struct_size extensions:extension_start dtype data rank shape:dims",
    ("Operands", "Args"): "struct_size extensions:extension_start size types values:args",
    ("Operands", "Rets"): "struct_size extensions:extension_start size types values:rets",
    ("Bytes", "ByteSpan"): "data:ptr size:len",
    ("Scalar", "Scalar"): "dtype value",
    ("Attributes", "Attrs"): "struct_size extensions:extension_start size types names values:attrs",
    ("StreamGet", "Stream_Get_Args"): "struct_size extensions:extension_start context:ctx stream",
    ("DeviceOrdinalGet", "DeviceOrdinal_Get_Args"): (
        "struct_size extensions:extension_start context:ctx ordinal:device_ordinal"
    ),
    ("Api", "Api"): (
        "struct_size extensions:extension_start version:api_version internal:internal_api "
        "create_error:XLA_FFI_Error_Create get_stream:XLA_FFI_Stream_Get "
        "get_device_ordinal:XLA_FFI_DeviceOrdinal_Get"
    ),
    ("CallFrame", "CallFrame"): (
        "struct_size extensions:extension_start api context:ctx stage operands:args results:rets "
        "attributes:attrs future"
    ),
    ("Metadata", "Metadata"): "struct_size version:api_version traits",
    ("MetadataExtension", "Metadata_Extension"): "base:extension_base metadata",
}
GROWING = ("Api", "Metadata")  # only their beginning is declared

CONSTANTS = {
    "kMajorVersion": "XLA_FFI_API_MAJOR",
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kCommandBufferCompatible": "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE",
    "ErrorCode::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "ErrorCode::failed_precondition": "XLA_FFI_Error_Code_FAILED_PRECONDITION",
    "ErrorCode::unimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "ErrorCode::internal": "XLA_FFI_Error_Code_INTERNAL",
    "DataType::boolean": "XLA_FFI_DataType_PRED",
    "DataType::int32": "XLA_FFI_DataType_S32",
    "DataType::int64": "XLA_FFI_DataType_S64",
    "DataType::float16": "XLA_FFI_DataType_F16",
    "DataType::float32": "XLA_FFI_DataType_F32",
    "DataType::float64": "XLA_FFI_DataType_F64",
    "DataType::bfloat16": "XLA_FFI_DataType_BF16",
    "DataType::float8_e5m2": "XLA_FFI_DataType_F8E5M2",
    "DataType::float8_e4m3fn": "XLA_FFI_DataType_F8E4M3FN",
    "OperandType::buffer": "XLA_FFI_ArgType_BUFFER",
    "AttributeType::scalar": "XLA_FFI_AttrType_SCALAR",
    "AttributeType::string": "XLA_FFI_AttrType_STRING",
}


def claims():
    """What must hold, one C++ expression each."""
    for (ours, theirs), fields in STRUCTS.items():
        ours, theirs = f"xla::{ours}", f"XLA_FFI_{theirs}"
        if ours.removeprefix("xla::") not in GROWING:
            yield f"sizeof({ours}) == sizeof({theirs})"
        for field in fields.split():
            mine, _, its = field.partition(":")
            its = its or mine
            yield f"offsetof({ours}, {mine}) == offsetof({theirs}, {its})"
            yield f"sizeof({ours}::{mine}) == sizeof({theirs}::{its})"
    for ours, theirs in CONSTANTS.items():
        yield f"static_cast<long>(xla::{ours}) == static_cast<long>({theirs})"
    yield "xla::kMinorVersion <= XLA_FFI_API_MINOR"


def test_structs_and_constants_are_those_of_jaxlib(tmp_path):
    builds.need("c++")
    source = tmp_path / "claims.cpp"
    lines = [f"static_assert({claim});" for claim in claims()]
    headers = f'#include "{OURS}"\n#include "xla/ffi/api/c_api.h"\nusing namespace fa3::python;\n'
    source.write_text(headers + "\n".join(lines))
    include = f"-I{jax.ffi.include_dir()}"
    builds.run("c++", "-std=c++20", "-fsyntax-only", include, str(source))


def test_every_declaration_is_among_them():
    text = OURS.read_text()
    declared = set(re.findall(r"^struct (\w+) \{", text, re.M))
    assert declared == {ours for ours, _ in STRUCTS}
    for ours, fields in STRUCTS.items():
        body = re.search(rf"^struct {ours[0]} \{{(.*?)^\}};", text, re.M | re.S)[1]
        body = re.sub(r"//.*", "", body)
        names = re.findall(r"(\w+)(?:\)\([^)]*\)|\[\d+\])?;", body)
        compared = {field.partition(":")[0] for field in fields.split()}
        left_out = set(names) - compared
        assert all(name.count("_and_") for name in left_out), (ours, left_out)
    named = set(re.findall(r"constexpr \w+ (k\w+)", text)) - {
        "kMinorVersion",
        "kOldestMinorVersion",
    }
    enums = re.findall(r"enum class (\w+) : int32_t \{(.*?)\}", text, re.S)
    named |= {f"{kind}::{x}" for kind, body in enums for x in re.findall(r"(\w+) =", body)}
    assert named == set(CONSTANTS)
