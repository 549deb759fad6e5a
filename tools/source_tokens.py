# SPDX-License-Identifier: Apache-2.0
"""What a compiler sees of a source file: its tokens, without comments and layout.

So that a record of verified sources outlives an edited comment. C++ and CUDA and CMake are known by
their suffix; of anything else every byte counts, of Python too: its tokens change with its version.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

CPP_SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".inc"}
CPP_COMMENT = r"//(?:\\\n|[^\n])*|/\*.*?\*/"
CPP_LITERAL = (
    r"""(?:u8|u|U|L)?R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)\""""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
)
CPP_TOKEN = re.compile(
    rf"(?P<comment>{CPP_COMMENT})|(?P<token>{CPP_LITERAL}"
    r"|\.?[0-9](?:[eEpP][+-]|'?[\w.])*"  # numbers, with their separators
    r"|\w+"
    r"|<=>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|>>|&&|\|\||##|[-+*/%&|^<>=!]=|\S)",
    re.DOTALL,
)
# In a directive blanks count: "#define F (x)" is not "#define F(x)". Comments are blanks.
CPP_DIRECTIVE = re.compile(rf"[ \t]*#(?:{CPP_LITERAL}|{CPP_COMMENT}|\\\n|[^\n])*", re.DOTALL)
CPP_IN_DIRECTIVE = re.compile(rf"(?P<token>{CPP_LITERAL})|(?:{CPP_COMMENT}|\\\n|\s)+", re.DOTALL)
CMAKE_TOKEN = re.compile(
    r"(?P<comment>#\[(?P<c>=*)\[.*?\](?P=c)\]|#[^\n]*)"
    r"""|(?P<token>\[(?P<t>=*)\[.*?\](?P=t)\]|"(?:\\.|[^"\\])*"|[()]|[^\s()#"]+)""",
    re.DOTALL,
)


def tokens_of(path: Path) -> list[str]:
    if path.suffix in CPP_SUFFIXES:
        return list(tokens_of_cpp(path.read_text()))
    if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
        return [
            found["token"] for found in CMAKE_TOKEN.finditer(path.read_text()) if found["token"]
        ]
    return [path.read_bytes().decode("latin-1")]


# A record's pieces share most of their sources.
@functools.cache
def tokens_of_cpp(text: str) -> tuple[str, ...]:
    return tuple(cpp_tokens(text))


def cpp_tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        directive = CPP_DIRECTIVE.match(text, at) if begins_line(text, at) else None
        if directive:
            parts = CPP_IN_DIRECTIVE.sub(lambda found: found["token"] or " ", directive[0])
            yield parts.strip()
            at = directive.end()
        elif found := CPP_TOKEN.match(text, at):
            if found["token"]:
                yield found["token"]
            at = found.end()
        else:
            at += 1  # a blank


def begins_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"
