# SPDX-License-Identifier: Apache-2.0
"""Puts fa3 under the names of flash_attn, into this environment or into a hub kernel's folder.

Programs look for FlashAttention by the name of a module and of its distribution. fa3 adopt writes
both: modules of a few lines that take every name from fa3.compat, and the dist-info of a package,
so that importlib.metadata and pip see it. The modules import from the fa3 that is installed, so
they need no renewal after its upgrades. Nothing is written where the real package is.
"""

import argparse
import base64
import csv
import hashlib
import importlib.machinery
import importlib.metadata
import io
import os
import re
import sys
import sysconfig
from pathlib import Path

from fa3.commands.shims import VERSIONS, hub_kernel, modules

INSTALLER = "fa3"
OWN_METADATA = "+fa3.dist-info"  # how the folders' names end, by VERSIONS


class Refusal(Exception):
    """A sentence for the user."""


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="fa3 adopt",
        description="Puts fa3 under the names of flash_attn, for programs that import these.",
        epilog="Without options: distribution flash-attn-3, with flash_attn_interface and "
        "flash_attn_3, where Transformers' flash_attention_3, TransformerEngine, Megatron-LM and "
        "diffusers look.",
    )
    parser.add_argument(
        "--flash-attn",
        action="store_true",
        help="also distribution flash-attn (FlashAttention-2)",
    )
    parser.add_argument(
        "--flash-attn-4",
        action="store_true",
        help="also distribution flash-attn-4 (flash_attn.cute); score_mod and mask_mod are then "
        "functions of torch",
    )
    parser.add_argument(
        "--ring-flash-attn",
        action="store_true",
        help="also distribution ring-flash-attn, over fa3.distributed; it needs no flash-attn, and "
        "imports beside Transformers 5",
    )
    parser.add_argument(
        "--returns-tuple",
        action="store_true",
        help="flash_attn_3's functions return (out, lse), as they did in 2024: for Wan 2",
    )
    parser.add_argument("--undo", action="store_true", help="remove what fa3 adopt has written")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        default=Path(sysconfig.get_path("purelib")),
        help="site-packages to write to; this Python's is %(default)s",
    )
    parser.add_argument(
        "--hub-kernel",
        type=Path,
        metavar="FOLDER",
        help="write a repository for Hugging Face's kernels there, and nothing else",
    )
    options = parser.parse_args(arguments)
    names = ["flash-attn-3"] + ["flash-attn"] * options.flash_attn
    names += ["flash-attn-4"] * options.flash_attn_4
    names += ["ring-flash-attn"] * options.ring_flash_attn
    try:
        if options.hub_kernel:
            if (options.hub_kernel / "build").exists():
                raise Refusal(f"{options.hub_kernel}: expected no folder build in it yet")
            report("wrote", write(options.hub_kernel, hub_kernel()))
        elif options.undo:
            removed, kept = undo(options.into, VERSIONS)
            report("removed", removed)
            report("kept, changed since:", kept)
            if not removed + kept:
                print(f"{options.into} has nothing that fa3 adopt wrote")
        else:
            report("wrote", adopt(options.into, names, options.returns_tuple))
            print(f"fa3 answers to {' and '.join(names)} here; fa3 adopt --undo takes it back")
    except Refusal as refusal:
        print(f"fa3 adopt: {refusal}", file=sys.stderr)
        return 2
    return 0


def report(what, paths):
    for path in paths:
        print(what, path)


def adopt(site, names, returns_tuple=False):
    """Writes the distributions into site, replacing own ones. Returns the paths."""
    if not site.is_dir():
        raise Refusal(f"{site}: expected the site-packages of an environment, got no such folder")
    site = Path(os.path.abspath(site))
    files = {name: modules(name, returns_tuple) for name in names}
    for name in names:
        refuse_if_taken(site, name, files[name])
    _, changed = found_in(site, names)
    if changed:
        raise Refusal(f"{changed[0]} was changed since fa3 adopt wrote it; move it away first")
    undo(site, names)
    written = []
    for name in names:
        written += write(site, with_metadata(name, files[name]))
    return written


def with_metadata(name, files):
    """The files and the dist-info that makes a distribution of them."""
    folder = f"{name.replace('-', '_')}-{VERSIONS[name]}.dist-info"
    tops = sorted({Path(file).parts[0].removesuffix(".py") for file in files})
    metadata = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSIONS[name]}\n"
        "Summary: The names of FlashAttention, answered by fa3 (written by fa3 adopt)\n"
        "Requires-Dist: fa3\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: fa3\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{folder}/top_level.txt": "".join(f"{top}\n" for top in tops),
        f"{folder}/INSTALLER": f"{INSTALLER}\n",
    }
    rows = io.StringIO()
    record = f"{folder}/RECORD"
    contents = {file: text.encode() for file, text in (files | metadata).items()}
    lines = [(file, digest(content), len(content)) for file, content in contents.items()]
    csv.writer(rows, lineterminator="\n").writerows([*lines, (record, "", "")])
    # INSTALLER and RECORD come first: whatever interrupts the others, --undo finds what there is.
    first = {f"{folder}/INSTALLER": f"{INSTALLER}\n", record: rows.getvalue()}
    return first | metadata | files


def digest(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().strip(
        "="
    )


def refuse_if_taken(site, name, files):
    """Refuses where somebody else has the distribution, one of its modules or one of its files."""
    path = [str(site), *sys.path]
    for found in importlib.metadata.distributions(path=path):
        if canonical(found.metadata["Name"]) == name and not is_own(found):
            raise Refusal(
                f"{name} {found.version} is installed in {found.locate_file('')}, and programs "
                f"that import it should get it; pip uninstall {name} first, or leave it"
            )
    own = {
        resolved(file.locate()) for found in own_distributions(path) for file in found.files or ()
    }
    for top in {Path(file).parts[0].removesuffix(".py") for file in files}:
        spec = importlib.machinery.PathFinder.find_spec(top, path)
        if spec is not None and spec.origin is not None and resolved(spec.origin) not in own:
            raise Refusal(f"{top} is there already, in {spec.origin}; remove it first, or leave it")
    for file in files:
        for folder in (site / file).parents:
            if folder != site and site in folder.parents and folder.is_symlink():
                raise Refusal(f"{folder}: expected a folder, got a link; remove it first")
        if os.path.lexists(site / file) and resolved(site / file) not in own:
            raise Refusal(f"{site / file} is there already; remove it first, or leave it")


def resolved(path):
    return Path(path).resolve()


def canonical(name):
    return re.sub(r"[-_.]+", "-", name or "").lower()


def is_own(distribution):
    return (distribution.read_text("INSTALLER") or "").strip() == INSTALLER


def own_distributions(path):
    return [found for found in importlib.metadata.distributions(path=path) if is_own(found)]


def write(folder, files):
    """Writes all files or none, and over nothing. Returns their paths."""
    written = []
    try:
        for file, text in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as made:
                written.append(path)
                made.write(text.encode())
    except BaseException as error:
        remove(folder, written)
        remove_empty(folder, path)
        if not isinstance(error, OSError):
            raise  # such as Ctrl-C
        raise Refusal(
            f"{folder}: expected a folder that can be written to, got {error.strerror}; use an "
            "environment of your own (python3 -m venv), or --into FOLDER on PYTHONPATH"
        ) from None
    return written


def undo(site, names):
    """Removes what adopt() wrote into site. Returns (removed, kept since they are changed)."""
    site = Path(os.path.abspath(site))
    removed, kept = found_in(site, names)
    try:
        remove(site, removed)
    except OSError as error:
        raise Refusal(f"{site}: expected to remove what is there, got {error.strerror}") from None
    return removed, kept


def found_in(site, names):
    """(what adopt() wrote into site, what was changed since).

    RECORD is a file like others: what it names outside of site, or behind a link, is left alone.
    """
    written, changed = [], []
    for folder in sorted(site.glob(f"*{OWN_METADATA}")):
        found = importlib.metadata.Distribution.at(folder)
        if canonical(folder.name.partition("-")[0]) not in names:
            continue
        hashes = {Path(os.path.normpath(file.locate())): file.hash for file in found.files or ()}
        hashes |= {path: None for path in folder.iterdir() if path not in hashes}
        for path, expected in hashes.items():
            if not is_file_in(site, path):
                continue
            content = path.read_bytes()
            if expected is None:
                same = path.parent == folder
            else:  # an empty file was interrupted
                same = content == b"" or digest(content) == f"sha256={expected.value}"
            (written if same else changed).append(path)
    # RECORD last: what interrupts the removal can be repeated.
    written.sort(key=lambda path: (path.name == "INSTALLER", path.name == "RECORD"))
    return written, changed


def is_file_in(site, path):
    """Whether it is a file below site, on a way without links."""
    if site not in path.parents or path.is_symlink() or not path.is_file():
        return False
    return resolved(path) == resolved(site) / path.relative_to(site)


def remove(site, paths):
    """Removes files, what Python compiled from them, and folders that this leaves empty."""
    for path in paths:
        compiled = list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))
        for file in (path, *compiled):
            file.unlink(missing_ok=True)
        remove_empty(site, path)


def remove_empty(site, path):
    """Removes the file's folders below site that are empty."""
    for folder in (path.parent / "__pycache__", *path.parents):
        if folder == site or site not in folder.parents:
            break
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
