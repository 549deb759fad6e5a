# SPDX-License-Identifier: Apache-2.0
"""Programs that were compiled with the fa3.h of a dump keep working, as far as a dump can say it.

tests/cpp/api/layout_test.cpp runs a call whose program knows fewer fields than the library.
"""

import re
import sys

import builds
import pytest

ABI = builds.ROOT / "tools" / "abi.py"
HEADERS = "fa3.h", "mla.h"
DUMPS = sorted((builds.ROOT / "tests" / "abi").glob("*.txt"))


@pytest.fixture(scope="module")
def facts():
    builds.need("nm", "cc")
    return builds.run(sys.executable, ABI, builds.library()).splitlines()


def test_only_the_c_abi_is_exported_and_every_symbol_has_a_version(facts):
    symbols = [fact.removeprefix("symbol ") for fact in facts if fact.startswith("symbol ")]
    assert [name for name in symbols if not name.startswith("fa3_") or "@@FA3_0." not in name] == []
    names = {name.partition("@")[0] for name in symbols}
    prototypes = {fact.partition("(")[0].split()[-1] for fact in facts if "function " in fact}
    declared = {name.lstrip("*") for name in prototypes if name.startswith(("fa3_", "*fa3_"))}
    assert declared <= {name.split("*")[-1] for name in names}


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_what_a_dump_promises_still_holds(dump):
    builds.need("nm", "cc")
    builds.run(sys.executable, ABI, builds.library(), "--against", dump)


def test_a_broken_promise_is_named(tmp_path):
    builds.need("nm", "cc")
    dump = tmp_path / "fa3-0.0.txt"
    dump.write_text("value FA3_OK = 0\nfield fa3_options.scale double at 0, 8 bytes\n")
    with pytest.raises(AssertionError, match="double.*\n.*keep what it had") as said:
        builds.run(sys.executable, ABI, builds.library(), "--against", dump)
    assert "FA3_OK" not in str(said.value)


def tensors_in(struct, structs, place="p"):
    """How code names each fa3_tensor of a struct, those of the structs within too."""
    found = []
    for kind, names in re.findall(r"(\w+) (\w+(?:, \w+)*);", structs[struct]):
        for name in names.split(", "):
            if kind == "fa3_tensor":
                found.append(f"{place}.{name}")
            elif kind in ("fa3_options", "fa3_mla_cache"):
                found += tensors_in(kind, structs, f"{place}.{name}")
    return found


def test_every_tensor_of_a_call_is_in_the_list_by_which_overlaps_are_refused():
    headers = "".join((builds.ROOT / "include/fa3" / name).read_text() for name in HEADERS)
    code = re.sub(r"/\*.*?\*/", "", headers, flags=re.DOTALL)
    structs = dict(re.findall(r"typedef struct (\w+) {(.*?)} \1;", code, re.DOTALL))
    text = (builds.ROOT / "src/api/call_tensors.h").read_text()
    text = text.replace("const DequantizeParams& p", "const fa3_quantize_params& p")
    lists = re.findall(r"tensors_of\(const (\w+)& p.*?{(.*?)\n}", text, re.DOTALL)
    assert {name for name, _ in lists} == {name for name in structs if name.endswith("_params")}
    for struct, body in lists:
        listed = re.findall(r'{"\w+", (?:y|(p[.\w]+)), k\w+}', body)
        # What is written of y may reach farther.
        assert sorted(x or "p.y" for x in listed) == sorted(tensors_in(struct, structs)), struct
