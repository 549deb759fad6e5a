# SPDX-License-Identifier: Apache-2.0
"""A wheel's bill of materials: what is in it, in a form that its schema accepts."""

import json
import sys
import zipfile

import builds
import pytest

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed")
sys.path.insert(0, str(builds.ROOT / "tools"))

import bill_of_materials

METADATA = """\
Metadata-Version: 2.4
Name: fa3
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Dist: numpy>=1.24
Requires-Dist: torch>=2.10; extra == "torch"
"""


@pytest.fixture(params=[True, False], ids=["with the command", "without"])
def wheel(request, tmp_path):
    builds.need("g++")
    if request.param and not (builds.folder() / "bin" / "fa3").exists():
        pytest.skip("this machine has no headers of the command")
    path = tmp_path / "fa3-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("fa3-0.1.0.dist-info/METADATA"), METADATA)
        if request.param:
            archive.writestr(zipfile.ZipInfo("fa3/bin/fa3"), "")
    return path


def test_it_names_what_the_wheel_contains(wheel):
    has_command = len(zipfile.ZipFile(wheel).namelist()) > 1
    text = bill_of_materials.write(wheel, cuda_version="13.0.88").read_text()
    bill = json.loads(text)
    of_command = {"CLI11", "fmt", "nlohmann-json"} if has_command else set()
    found = {part["name"]: part.get("version") for part in bill["components"]}
    assert found.keys() == {"libstdc++", "libgcc", "CUDA runtime", "numpy"} | of_command
    assert all(version for name, version in found.items() if name != "numpy")
    whole = bill["metadata"]["component"]
    assert (whole["name"], whole["version"]) == ("fa3", "0.1.0")
    assert bill_of_materials.write(wheel, cuda_version="13.0.88").read_text() == text


def test_its_schema_accepts_it(wheel):
    pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = bill_of_materials.write(wheel).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
