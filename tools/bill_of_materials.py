# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials of a wheel, as CycloneDX 1.6 in JSON: what is in it, by whom.

    tools/bill_of_materials.py WHEEL [COMPILER]

Writes WHEEL.cdx.json beside it. The same wheel, compiler and headers give the same bytes.
tools/build_wheel.py calls it for every wheel.
"""

import hashlib
import re
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from email import message_from_bytes
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# name -> licence, header, macros of the version: headers that the command contains.
HEADERS = {
    "CLI11": ("BSD-3-Clause", "CLI/Version.hpp", ["CLI11_VERSION"]),
    "fmt": ("MIT", "fmt/core.h", ["FMT_VERSION"]),
    "nlohmann-json": (
        "MIT",
        "nlohmann/json.hpp",
        [f"NLOHMANN_JSON_VERSION_{part}" for part in ("MAJOR", "MINOR", "PATCH")],
    ),
}
GCC_LICENCE = "GPL-3.0-or-later WITH GCC-exception-3.1"


def macros(header: str) -> dict[str, str]:
    """The macros that a header defines, of any machine."""
    command = ["g++", "-std=c++20", "-E", "-dM", "-xc++", "-"]
    source = f"#include <{header}>\n"
    said = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^#define (\w+) (.*)$", said, re.MULTILINE))


def version_in(found: dict[str, str], names: list[str]) -> str:
    version = ".".join(found[name].strip('"') for name in names)
    if version.isdigit():  # fmt writes 9.1.0 as 90100
        number = int(version)
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return version


def contained(names: list[str], compiler: str) -> Iterator[Component]:
    """What the wheel's files contain of others."""
    gcc = subprocess.check_output([compiler, "-dumpfullversion"], text=True).strip()
    for library in ("libstdc++", "libgcc"):
        yield component(library, gcc, GCC_LICENCE)
    if "fa3/bin/fa3" in names:
        for name, (licence, header, of_version) in HEADERS.items():
            yield component(name, version_in(macros(header), of_version), licence)


def component(name: str, version: str, licence: str, **more) -> Component:
    purl = more.pop("purl", PackageURL("generic", None, name.lower().replace(" ", "-"), version))
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression(licence)],
        purl=purl,
        bom_ref=str(purl),
        **more,
    )


def bill_of(wheel: Path, compiler: str = "g++", cuda_version: str | None = None) -> Bom:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(metadata))
        latest = max(entry.date_time for entry in archive.infolist())
    whole = component(
        about["Name"],
        about["Version"],
        about["License-Expression"],
        purl=PackageURL("pypi", None, about["Name"], about["Version"]),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    parts = list(contained(names, compiler))
    if cuda_version is not None:
        licence = "LicenseRef-NVIDIA-CUDA-EULA"
        parts.append(component("CUDA runtime", cuda_version, licence))
    for requirement in about.get_all("Requires-Dist", []):
        if "extra ==" not in requirement:
            name = re.match(r"[\w.-]+", requirement)[0]
            purl = PackageURL("pypi", None, name)
            parts.append(
                Component(
                    name=name,
                    type=ComponentType.LIBRARY,
                    description=f"needed at run time: {requirement}",
                    scope=ComponentScope.REQUIRED,
                    purl=purl,
                    bom_ref=str(purl),
                )
            )
    bill = Bom(
        components=parts,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"),
        metadata=BomMetaData(
            component=whole, timestamp=datetime(*latest, tzinfo=timezone.utc), tools=[]
        ),
    )
    bill.register_dependency(whole, parts)
    return bill


def write(wheel: Path, compiler: str = "g++", cuda_version: str | None = None) -> Path:
    path = wheel.with_name(f"{wheel.name}.cdx.json")
    path.write_text(JsonV1Dot6(bill_of(wheel, compiler, cuda_version)).output_as_string(indent=2))
    return path


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    print(write(Path(sys.argv[1]), *sys.argv[2:]))
